"""Sizes of the checks."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class GateConfig:
    """Sizes of the checks.

    Attributes:
      checks: which of `registry.CHECKS` run; "parse" always does.
      max_turns: the agent's turn budget; a longer solution counts as none.
      seeds: seeds for `nontrivial`, `responsive` and `varied`.
      solvable_seeds: seeds on which the solution must win.
      determinism_seeds: seeds that are replayed in two processes.
      trivial_seeds: seeds after which a scoring mindless policy is judged.
      trivial_score: a mindless policy must not average above this.
      perturbed_wins: share of seeds from which on a solution perturbed otherwise wins too often.
      other_wins: share of pairs of seeds from which on one's solution wins the other too often.
      distinct_observations: least number of distinct first observations.
      sealed_seeds: seeds on which answers are looked for in texts.
      parrot_score: a policy that repeats the hint must not win more often.
      novel_tiers: which of `novel.TIERS` find duplicates.
      novel_jaccard: share of common token runs from which on a program is a duplicate.
      kind: of the programs, "game" or "tool".
    """

    checks: tuple[str, ...]
    max_turns: int = 25
    seeds: int = 8
    solvable_seeds: int = 5
    determinism_seeds: int = 2
    trivial_seeds: int = 24
    trivial_score: float = 0.1
    perturbed_wins: float = 0.5
    other_wins: float = 0.25
    distinct_observations: int = 4
    sealed_seeds: int = 16
    parrot_score: float = 0.25
    novel_tiers: tuple[str, ...] = ("source", "tree", "shingles", "behaviour")
    novel_jaccard: float = 0.8
    kind: str = "game"
