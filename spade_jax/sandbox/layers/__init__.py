"""The isolation layers, in the order a child applies them.

A layer has a name, an `apply` that a child runs before any line of the program,
and a `probe` that tries what the layer forbids. At start the fork server runs
every `apply` and then every `probe` in a child made for it (`survey`): a layer
counts as active when its behaviour was seen, not because a version number
promises it. Adding a layer is adding an entry to `LAYERS`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence

from spade_jax.sandbox.layers.accounting import ACCOUNTING
from spade_jax.sandbox.layers.base import CHANNEL, Context, Layer, LayerStatus
from spade_jax.sandbox.layers.ids import IDS
from spade_jax.sandbox.layers.landlock import LANDLOCK
from spade_jax.sandbox.layers.namespaces import NAMESPACES
from spade_jax.sandbox.layers.process import DESCRIPTORS, PRIVILEGES, SESSION, default_signals
from spade_jax.sandbox.layers.resources import LIMITS, address_space_bytes
from spade_jax.sandbox.layers.seccomp import SECCOMP

__all__ = [
    "CHANNEL", "Context", "ISOLATION", "LAYERS", "Layer", "LayerStatus", "NAMES", "REQUIRED", "address_space_bytes",
    "default_signals", "describe", "lock_down", "missing", "supported", "survey",
]  # fmt: skip

LAYERS = (DESCRIPTORS, SESSION, NAMESPACES, LIMITS, IDS, PRIVILEGES, LANDLOCK, SECCOMP, ACCOUNTING)
NAMES = tuple(layer.name for layer in LAYERS)

# What `strict` insists on: the layers that need no privileges and together contain every
# known attack (the table in README.md). The others are used where the machine has them.
REQUIRED = ("descriptors", "session", "limits", "privileges", "seccomp", "accounting")

# The layers that each level of isolation applies.
ISOLATION = {"strict": NAMES, "best_effort": NAMES, "none": ("descriptors", "session", "limits")}


def describe(statuses: Iterable[LayerStatus]) -> str:
    """One line for the log and for reports."""
    return ", ".join(s.name if s.active else f"no {s.name} ({s.evidence})" for s in statuses)


def missing(statuses: Iterable[LayerStatus], required: Iterable[str]) -> str:
    """Which required layers do not hold, what was seen and what gives them; "" if all hold."""
    advice = {layer.name: layer.advice for layer in LAYERS}
    found = {status.name: status for status in statuses}
    seen = [found.get(name, LayerStatus(name, False, "it was not tried", False)) for name in required]
    lacking = [status for status in seen if not status.active]
    return "; ".join(f"the layer {s.name} does not hold here ({s.evidence}): {advice[s.name]}" for s in lacking)


def lock_down(layers: Iterable[Layer], context: Context) -> None:
    """Applies the layers to this process, in order. Raises OSError."""
    for layer in layers:
        layer.apply(context)


def survey(layers: Sequence[Layer], context: Context) -> list[LayerStatus]:
    """Tries the layers in a process made for it; one status per layer.

    `context.channel` is replaced by a pipe. A layer that cannot be applied is
    skipped, so that the rest is seen as a child will have it.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            statuses = _survey_here(layers, dataclasses.replace(context, channel=writer))
            os.write(CHANNEL, json.dumps([dataclasses.astuple(s) for s in statuses]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    if not answer:
        return [LayerStatus(layer.name, False, "the probing process died", False) for layer in layers]
    return [LayerStatus(*status) for status in json.loads(answer)]


def _survey_here(layers: Sequence[Layer], context: Context) -> list[LayerStatus]:
    evidence: dict[str, str] = {}
    applied = set()
    stages: list[list[Layer]] = [[]]
    for layer in layers:
        if layer.masks:
            stages.append([])
        stages[-1].append(layer)
    for stage in stages:
        for layer in stage:
            try:
                layer.apply(context)
                applied.add(layer.name)
            except OSError as error:
                evidence[layer.name] = error.strerror or str(error)
        _probe([layer for layer in stage if not layer.late], context, evidence)
    _probe(layers, context, evidence)
    return [
        LayerStatus(layer.name, not evidence[layer.name], evidence[layer.name], layer.name in applied)
        for layer in layers
    ]


def _probe(layers: Iterable[Layer], context: Context, evidence: dict[str, str]) -> None:
    """Fills in what the probes see, for layers of which nothing is known yet."""
    for layer in layers:
        if layer.name not in evidence:
            try:
                evidence[layer.name] = layer.probe(context)
            except Exception as error:  # a probe that breaks has shown nothing
                evidence[layer.name] = f"probe failed: {type(error).__name__}: {error}"


def supported() -> str:
    """Why this machine cannot run a pool, "" if it can."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return f"the sandbox needs Linux 5.4 or later (pidfd_open), this is {sys.platform}"
    return ""
