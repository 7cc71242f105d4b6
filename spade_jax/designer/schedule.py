"""Which skills the designer is asked for at a regeneration."""

from __future__ import annotations

from spade_jax.designer.prompts import SKILLS


def active_skills(regeneration: int, count: int = 3) -> tuple[str, ...]:
    """The `count` skills of the `regeneration`-th regeneration (from 0).

    The six skills rotate in order, so over any six consecutive places every skill
    is asked for once. A function of the index alone: nothing to checkpoint.
    """
    if not 1 <= count <= len(SKILLS):
        raise ValueError(f"{count} active skills are impossible; use 1 to {len(SKILLS)}")
    first = regeneration * count
    return tuple(SKILLS[(first + i) % len(SKILLS)] for i in range(count))
