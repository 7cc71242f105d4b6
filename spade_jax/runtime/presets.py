"""The named switches of the method, and what each preset sets them to.

A switch that the config leaves at None takes its value from `method.preset`, so that
`--config.method.preset=paper` sets all of them back to the published method, and one
more flag ablates a single one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from spade_jax.runtime.errors import UsageError


class Switch(NamedTuple):
    """One deviation from the published method."""

    strict: Any
    paper: Any


# In the order they run.
GATE_CHECKS = ("parse", "contract", "determinism", "solvable", "nontrivial", "responsive", "varied", "sealed", "novel")

SWITCHES: dict[str, Switch] = {
    "method.paired_seeds": Switch(True, False),
    "method.regret_floor": Switch(False, True),
    "method.regret_scale": Switch("adaptive", "fixed"),
    "method.plateau_correction": Switch(True, False),
    "method.invalid_penalty": Switch(True, False),
    "method.invalid_share_cap": Switch(0.5, 1.0),
    "method.cap_unverified": Switch(True, False),
    "method.void_crashes": Switch(True, False),
    "method.truncated_scores_zero": Switch(False, True),
    "gate.checks": Switch(GATE_CHECKS, ("parse", "contract")),
    "memory.rank": Switch("lower_bound", "regret"),
    "memory.eviction": Switch("cells", "oldest"),
    "memory.replay_share": Switch(0.25, 0.0),
    "corpus.draw": Switch("epoch", "uniform"),
    "corpus.deduplicate": Switch(True, False),
    "learner.estimator.designer": Switch("leave_one_out", "group_mean"),
}

PRESETS = Switch._fields


def get_key(config: ConfigDict, key: str) -> Any:
    """The value of a dotted key."""
    node: Any = config
    for part in key.split("."):
        node = node[part]
    return node


def set_key(config: ConfigDict, key: str, value: Any) -> None:
    """Sets the value of a dotted key that exists."""
    section, _, leaf = key.rpartition(".")
    (get_key(config, section) if section else config)[leaf] = value


def resolve_preset(config: ConfigDict) -> ConfigDict:
    """A copy of the config with every switch set.

    Raises:
      UsageError: `method.preset` is not one of PRESETS.
    """
    if config.method.preset not in PRESETS:
        raise UsageError(f"method.preset={config.method.preset!r} is not known; use {' or '.join(PRESETS)}")
    resolved = config.copy_and_resolve_references()
    for key, switch in SWITCHES.items():
        if get_key(resolved, key) is None:
            set_key(resolved, key, getattr(switch, config.method.preset))
    resolved.lock()
    return resolved
