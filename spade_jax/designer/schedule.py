"""Which skills the designer is asked for at a regeneration."""

from __future__ import annotations

from collections.abc import Sequence


def active_skills(skills: Sequence[str], regeneration: int, count: int) -> tuple[str, ...]:
    """The `count` of `skills` that the `regeneration`-th regeneration (from 0) asks for.

    They rotate in order, so every skill is asked for equally often. A function of
    the index alone: nothing to checkpoint.
    """
    if not 1 <= count <= len(skills):
        raise ValueError(f"{count} active skills are impossible; use 1 to {len(skills)}")
    first = regeneration * count
    return tuple(skills[(first + i) % len(skills)] for i in range(count))
