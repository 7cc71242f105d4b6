"""The environment contract, and the few facts about it that everyone shares.

A program is one Python source file, standard library only, with one class:

    __init__(self, max_turns=..., **kwargs)
    reset(self, seed=None) -> (observation: str, info: dict)
    step(self, action: str) -> (observation: str, reward: float,
                                terminated: bool, truncated: bool, info: dict)
    solution(self) -> list[str]   commands, plain text and unboxed, that solve the
                                  *current* instance from its first state
    secrets(self) -> list[str]    optional: strings that must not be shown unearned
    close(self)

`reward` is the current score in [0, 1] and the last one counts.
`info["success"]` says whether the goal was met; where it is absent, success is
termination with reward >= 1 - 1e-6. The action arrives as `\\boxed{command}`, or
as the stripped response where the player boxed nothing.

A tool-use program keeps the same contract through its base class (`tools.py`): actions
arrive as `<tool_call>{json}</tool_call>` or `<answer>done</answer>`, and `solution` lists
what stands inside the tags.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

METHODS = ("reset", "step", "solution", "secrets", "close")
REQUIRED_METHODS = ("reset", "step")
MAX_OBSERVATION_CHARS = 4000
SUCCESS_REWARD = 1.0 - 1e-6


def environment_id(source: str) -> str:
    """Hex SHA-256 of a program's source: the id of its record."""
    return hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()


def succeeded(reward: float, terminated: bool, info: Mapping[str, Any]) -> bool:
    """Whether the goal was met, by the contract's rule."""
    if isinstance(info.get("success"), bool):
        return info["success"]
    return terminated and reward >= SUCCESS_REWARD
