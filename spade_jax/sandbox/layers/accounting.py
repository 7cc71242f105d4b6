"""Accounting: every page that a child holds is one that the trainer can count.

The count itself is the trainer's (`sandbox/memory.py`): it samples what the children
have in memory and ends the biggest where they exceed the budget together. A
child's layer is the other half, that it can hold nothing that such a sample
does not see: no memory file, no shared mapping, no file in a tmpfs, no pipe.
seccomp forbids them all, so that nothing is left to apply here, only to probe;
control groups, which would see those too, are not needed then.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable

from spade_jax.sandbox.layers.base import Context, Layer


def _apply(context: Context) -> None:
    """Nothing: see above."""


def _probe(context: Context) -> str:
    attempts: dict[str, Callable[[], object]] = {
        "memory files": lambda: os.memfd_create("probe"),
        "shared mappings": lambda: mmap.mmap(-1, mmap.PAGESIZE),
        "pipes": os.pipe,
        "files in /dev/shm": lambda: _file("/dev/shm"),
        "files in /tmp": lambda: _file("/tmp"),
    }
    for name, attempt in attempts.items():
        with contextlib.suppress(OSError):
            attempt()
            return f"memory in {name} would not be counted"
    return ""


def _file(folder: str) -> None:
    os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600))


ACCOUNTING = Layer(
    "accounting",
    _apply,
    _probe,
    "it needs the layer seccomp, and a /proc whose hidepid option does not hide the children from the trainer",
    masks=True,
)
