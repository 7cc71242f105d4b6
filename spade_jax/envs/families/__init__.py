"""The bundled families of games, found by listing this folder; those of tool use are in `tools/`."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from spade_jax.envs.families import base


@functools.cache
def all_families() -> tuple[base.Family, ...]:
    """Every bundled family, ordered by name (the order seeds are drawn in)."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base" and not m.ispkg)
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in names)


def by_name(name: str) -> base.Family:
    """The family called `name`; KeyError lists the known ones."""
    families = {family.name: family for family in all_families()}
    if name not in families:
        raise KeyError(f"family {name!r} is not bundled; known: {', '.join(families)}")
    return families[name]
