"""What tool-use programs must show besides: checks `criteria` and `reference`.

The base class (`spade_jax/envs/tools.py`) refuses most of this by itself, at reset; but a
program shares a process with it, so the checks go by what replies show.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from typing import Any

from spade_jax.designer.gate.session import MAIN, Outcome, Rejected, Session, box
from spade_jax.envs import tools

_PUBLISHED_SEEDS = (0, 1, 2)  # those that the published method resets with
_OWN_SEEDS = 5
_SIGNATURE = re.compile(r"^(\w+)\((.*?)\)", re.MULTILINE)

# Values of the right type that nothing is called.
_ODD: dict[str, tuple[Any, ...]] = {
    "string": ("", "no such thing", "x" * 500),
    "integer": (-1, 0, 2**53),
    "number": (-0.5, 0, 1e300),
    "boolean": (False, True),
    "array": ([],),
    "object": ({},),
}


def check_criteria(session: Session) -> Outcome:
    """Tools and messages as the contract wants them, no criterion met or raising before anything was done."""
    seeds = [*_PUBLISHED_SEEDS, *(session.seed(index) for index in range(_OWN_SEEDS))]
    schemas, messages = [], 0
    for seed in seeds:
        _, info = yield from session.start(MAIN, seed)
        schemas, criteria = _declared(info, f"reset(seed={seed})")
        messages = len(criteria)
        if any(criteria):
            raise Rejected("contract", f"reset(seed={seed}): message {criteria.index(True) + 1} is already satisfied")
    calls = 0
    for schema in schemas:
        for odd in range(3):
            values = {name: _odd_value(kind, odd) for name, kind in schema["parameters"]["properties"].items()}
            yield from session.start(MAIN, seeds[0])
            yield from session.step(MAIN, box(json.dumps({"name": schema["name"], "arguments": values})))
            calls += 1
    return True, (
        f"{len(schemas)} tools, {messages} messages, none satisfied at reset on {len(seeds)} seeds; "
        f"survives {calls} calls with odd values"
    )


def check_reference(session: Session) -> Outcome:
    """The reference's calls fit their schemas, use known values, and satisfy the messages one after the other."""
    calls = 0
    for index in range(session.config.solvable_seeds):
        seed = session.seed(index)
        observation, info = yield from session.start(MAIN, seed)
        schemas, criteria = _declared(info, f"reset(seed={seed})")
        by_name = {schema["name"]: schema for schema in schemas}
        known, message = observation, 0
        _, commands = yield from session.solve(MAIN, seed)
        steps = yield from session.play(MAIN, commands)
        for command, step in zip(commands, steps, strict=False):  # that it wins has been checked
            where = f"seed {seed}, message {message + 1}"
            done = command == tools.DONE
            if not done:
                _check_call(command, by_name, known, where)
                calls += 1
            elif not any(criteria[message : message + 1]):
                raise Rejected("unsolvable", f"{where}: the reference's calls do not satisfy it")
            if step.info.get("error") is not False:
                raise Rejected("unsolvable", f"{where}: {command!a:.80} is answered {step.observation!a:.80}")
            criteria = _criteria(step.info, where)
            known += f"\n{step.observation}"
            message += done
            later = message if done else message + 1  # none from here on has been worked on yet
            if any(criteria[later:]):
                early = criteria.index(True, later) + 1
                raise Rejected("unsolvable", f"{where}: message {early} is satisfied before its turn")
    return True, f"{calls} calls on {session.config.solvable_seeds} seeds: of the right types, derivable, in order"


def _check_call(command: str, schemas: dict[str, dict], known: str, where: str) -> None:
    try:
        call = json.loads(command)
        name, arguments = call["name"], call["arguments"]
        error = tools.argument_error(schemas[name], arguments)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Rejected("unsolvable", f"{where}: {command!a:.80} is no call of a listed tool") from None
    if error:
        raise Rejected("unsolvable", f"{where}: {error}")
    for value in _leaves(arguments):
        if not isinstance(value, bool) and not _stands_in(str(value), known):
            raise Rejected("unsolvable", f"{where}: {name} takes {value!a:.60}, which no message or result has shown")


def _stands_in(value: str, text: str) -> bool:
    """Whether a value stands in the text as a whole, whatever the case."""
    return re.search(rf"(?<![\w.]){re.escape(value)}(?!\w|\.\d)", text, re.IGNORECASE) is not None


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner)
    elif value is not None:
        yield value


def _declared(info: dict[str, Any], where: str) -> tuple[list[dict], list[bool]]:
    """(tool schemas, criteria) of a reset's info; Rejected where they are not what the base class sends."""
    criteria, schemas = _criteria(info, where), info.get("tools")
    for what, listed, low, high in (
        ("tools", schemas, tools.MIN_TOOLS, tools.MAX_TOOLS),
        ("messages", criteria, tools.MIN_MESSAGES, tools.MAX_MESSAGES),
    ):
        if not isinstance(listed, list) or not low <= len(listed) <= high:
            raise Rejected("contract", f"{where}: {low} to {high} {what} are needed")
    try:
        for schema in schemas:
            tools.signature(schema)
            [_odd_value(kind, 0) for kind in schema["parameters"]["properties"].values()]
    except (LookupError, TypeError, AttributeError, ValueError):
        raise Rejected("contract", f"{where}: a tool's schema is malformed") from None
    return schemas, criteria


def _criteria(info: dict[str, Any], where: str) -> list[bool]:
    criteria = info.get("criteria")
    if not isinstance(criteria, list) or not all(isinstance(met, bool) for met in criteria):
        raise Rejected("contract", f"{where}: the info lists no criteria")
    return criteria


def _odd_value(schema: dict[str, Any], number: int) -> Any:
    values = schema["enum"] if "enum" in schema else _ODD[schema["type"]]
    return values[number % len(values)]


def _random_call(first: str, last: str, rng: random.Random) -> str:
    """A random tool with words and numbers that have been shown, or the end of the message."""
    signatures = _SIGNATURE.findall(first)
    if not signatures or rng.random() < 0.25:
        return tools.DONE
    name, parameters = rng.choice(signatures)
    shown = first.partition("\nUser: ")[2] + " " + last
    words, numbers = re.findall(r"[^\W\d]\w*", shown) or ["x"], re.findall(r"\d+", shown)[:100] or ["1"]
    arguments: dict[str, Any] = {}
    for parameter in filter(None, parameters.split(", ")):
        argument, _, kind = parameter.partition(": ")
        number = kind in ("integer", "number")
        arguments[argument.rstrip("?")] = int(rng.choice(numbers)[:9]) if number else rng.choice(words)
    return json.dumps({"name": name, "arguments": arguments})


# Policies that understand nothing, besides those that every kind is tried with.
TOOL_POLICIES = {"random-call": _random_call}
