"""The bundled families of tool use, found by listing this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from typing import Any

from spade_jax.envs import tools
from spade_jax.envs.families.tools import base


@functools.cache
def all_families() -> tuple[base.ToolFamily, ...]:
    """Every bundled family of tool use, ordered by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name != "base")
    return tuple(importlib.import_module(f"{__name__}.{name}").FAMILY for name in names)


def load(source: str, class_name: str) -> type:
    """The class of a bundled tool-use program, run in this process: for our own text, never a policy's."""
    sys.modules.setdefault(tools.MODULE, tools)  # the name that programs import our base class under
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "<bundled>", "exec"), namespace)
    return namespace[class_name]
