"""What devices send to each other in a compiled program, counted in its HLO text.

    counted = count(jax.jit(f).lower(x).compile().as_text())

Bytes are those that one device sends where a collective runs in a ring, the least that any algorithm needs: of an
array of n bytes over a group of g devices (g - 1) / g * n, twice that for an all-reduce. Loops count as often as the
compiler knows them to go round.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# By operation, what a ring sends of the bytes of the result, as a function of the group's size.
_SENT = {
    "all-gather": lambda g: (g - 1) / g,
    "all-reduce": lambda g: 2 * (g - 1) / g,
    "reduce-scatter": lambda g: g - 1,  # its result is one g-th of what goes round
    "all-to-all": lambda g: (g - 1) / g,
    "collective-permute": lambda g: 1.0,
}
_BITS = {"pred": 8, "bf16": 16, "f16": 16, "f32": 32, "f64": 64} | {
    f"{sign}{bits}": bits for sign in "su" for bits in (2, 4, 8, 16, 32, 64)
}
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([a-z][a-z\-]*)\((.*)$")
_CALLED = re.compile(
    r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)|branch_computations=\{([^}]*)\}"
)
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')


class Traffic(NamedTuple):
    """Attributes:
    calls: how often an operation runs.
    sent: bytes that one device sends in all of them.
    """

    calls: int
    sent: float


def count(hlo: str, rounds: int | None = None) -> dict[str, Traffic]:
    """{operation: traffic} of a compiled program; operations that do not occur are left out.

    Args:
      rounds: of the loops that communicate and of which the compiler does not know how often they go round.

    Raises:
      ValueError: there is such a loop and `rounds` is not given, or a line is not understood.
    """
    computations, entry = _computations(hlo)
    found: dict[str, Traffic] = {}
    for name, calls, sent in _walk(computations, entry, 1, rounds):
        before = found.get(name, Traffic(0, 0.0))
        found[name] = Traffic(before.calls + calls, before.sent + sent)
    return found


def _computations(hlo: str) -> tuple[dict[str, list[str]], str]:
    """({name: its lines}, the name of the one that runs first)."""
    computations: dict[str, list[str]] = {}
    entry, lines = "", []
    for line in hlo.splitlines():
        if match := _COMPUTATION.match(line):
            lines = computations[match[2]] = []
            entry = match[2] if match[1] else entry
        else:
            lines.append(line)
    return computations, entry


def _walk(
    computations: dict[str, list[str]], name: str, times: int, rounds: int | None
) -> Iterator[tuple[str, int, float]]:
    """(operation, how often, bytes sent in all) of every collective that a computation leads to."""
    for line in computations[name]:
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        shape, operation, rest = match.groups()
        operation = operation.removesuffix("-start")
        if operation in _SENT:
            yield operation, times, times * _SENT[operation](_group_size(rest)) * _bytes(shape)
            continue
        called = [name for one, many in _CALLED.findall(rest) for name in ([one] if one else _names(many))]
        inner = [one for computation in called for one in _walk(computations, computation, times, rounds)]
        if operation == "while" and inner:
            trips = _TRIPS.search(rest)
            if trips is None and rounds is None:
                raise ValueError(f"a loop that communicates goes round an unknown number of times: {line[:200]}")
            n = int(trips[1]) if trips else rounds
            inner = [(kind, calls * n, sent * n) for kind, calls, sent in inner]
        yield from inner


def _names(text: str) -> list[str]:
    return [name.strip().lstrip("%") for name in text.split(",")]


def _group_size(rest: str) -> int:
    """Devices that take part in one group of a collective."""
    if "source_target_pairs=" in rest:
        return 1
    if match := re.search(r"replica_groups=\[\d+,(\d+)\]", rest):  # groups, devices in each
        return int(match[1])
    if match := re.search(r"replica_groups=\{\{([\d,]*)\}", rest):
        return match[1].count(",") + 1
    if match := re.search(r"replica_groups=mesh\[([^\]]*)\][^{]*\{([^}]*)\}", rest):  # axes, those of a group
        sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", match[1])}
        axes = re.findall(r"'([^']+)'(?::\(\d+\)(\d+))?", match[2])  # the latter: a part of an axis
        return math.prod(int(part) if part else sizes[name] for name, part in axes)
    raise ValueError(f"no groups in {rest[:200]}")


def _bytes(shape: str) -> float:
    """Of a result, a tuple's parts together, e.g. "(f32[2,3]{1,0}, s8[])"."""
    parts = re.findall(r"([a-z]+\d*)\[([\d,]*)\]", shape)
    return sum(_BITS[kind] / 8 * math.prod(int(size) for size in sizes.split(",") if size) for kind, sizes in parts)
