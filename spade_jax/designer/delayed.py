"""Designer samples that wait until their environments have been played for a whole window.

The win rate that the plateau needs is that of `window` rollouts, so a designer sample
is trained on only then. Rejected programs wait with their batch, because the samples of
one skill are centred together. Pure data: the queue is part of the host checkpoint.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from spade_jax.structs import Trajectory, to_jsonable, trajectory_from_json


@dataclasses.dataclass
class Waiting:
    """One designer sample and what its environment's plays have shown so far.

    Attributes:
      environment_id: id of the program's record.
      skill: the skill it was asked for.
      written_step: the step in which it was sampled.
      failure: the gate's failure class, None for a valid program.
      solvable: whether its solution was seen to win.
      trajectory: the sample itself.
      seed: seed index of each play, one entry per paired play.
      plain: return without hint, None where void.
      hinted: return with hint, None where void.
      won: whether the play without hint was a success, None where void.
    """

    environment_id: str
    skill: str
    written_step: int
    failure: str | None
    solvable: bool
    trajectory: Trajectory
    seed: list[int] = dataclasses.field(default_factory=list)
    plain: list[float | None] = dataclasses.field(default_factory=list)
    hinted: list[float | None] = dataclasses.field(default_factory=list)
    won: list[bool | None] = dataclasses.field(default_factory=list)

    def returns(self) -> tuple[np.ndarray, np.ndarray]:
        """float64[S] returns of both arms, NaN where void: the arguments of `reward.regret`."""
        return np.array(self.plain, np.float64), np.array(self.hinted, np.float64)

    def outcomes(self) -> tuple[np.ndarray, np.ndarray]:
        """(int64[N] seed index, bool[N] won) of the valid plays without hint."""
        kept = [(seed, won) for seed, won in zip(self.seed, self.won, strict=True) if won is not None]
        return np.array([seed for seed, _ in kept], np.int64), np.array([won for _, won in kept], bool)


class DelayedQueue:
    """First in, first out; a batch is released `window` rollouts after it was written."""

    def __init__(self, window: int):
        if window < 1:
            raise ValueError(f"a window of {window} rollouts is impossible; use 1 or more")
        self._window = window
        self._items: list[Waiting] = []

    def __len__(self) -> int:
        return len(self._items)

    def push(self, item: Waiting) -> None:
        self._items.append(item)

    def observe(
        self,
        environment_id: str,
        seed: Sequence[int],
        plain: Sequence[float | None],
        hinted: Sequence[float | None],
        won: Sequence[bool | None],
    ) -> None:
        """Adds one rollout's paired plays to every sample that waits for this environment."""
        if not len(seed) == len(plain) == len(hinted) == len(won):
            raise ValueError(
                f"unpaired plays: {len(seed)} seeds, {len(plain)} plain, {len(hinted)} hinted, {len(won)} won"
            )
        for item in self._items:
            if item.environment_id == environment_id:
                item.seed += [int(s) for s in seed]
                item.plain += list(plain)
                item.hinted += list(hinted)
                item.won += list(won)

    def release(self, step: int) -> list[Waiting]:
        """Removes and returns the samples whose window ends with `step`, in order."""
        due = [item for item in self._items if step >= item.written_step + self._window - 1]
        self._items = [item for item in self._items if step < item.written_step + self._window - 1]
        return due

    def state(self) -> list[dict[str, Any]]:
        """The queue as JSON-able data."""
        return [to_jsonable(item) for item in self._items]

    def load(self, state: Sequence[dict[str, Any]]) -> None:
        """Inverse of `state`."""
        self._items = [Waiting(**{**item, "trajectory": trajectory_from_json(item["trajectory"])}) for item in state]
