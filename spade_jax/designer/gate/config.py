"""Sizes of the checks."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class GateConfig:
    """Sizes of the checks.

    Attributes:
      checks: which of `registry.CHECKS` run; "parse" always does.
      max_turns: the agent's turn budget; a longer solution counts as none.
      seeds: seeds for `nontrivial` and `varied`.
      solvable_seeds: seeds on which the solution must win.
      determinism_seeds: seeds that are replayed in two processes.
      trivial_seeds: seeds after which a scoring mindless policy is judged.
      trivial_score: a mindless policy must not average above this.
      distinct_observations: least number of distinct first observations.
      kind: of the programs, "game" or "tool".
    """

    checks: tuple[str, ...]
    max_turns: int = 25
    seeds: int = 8
    solvable_seeds: int = 5
    determinism_seeds: int = 2
    trivial_seeds: int = 24
    trivial_score: float = 0.1
    distinct_observations: int = 4
    kind: str = "game"
