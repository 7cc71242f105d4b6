"""Files that appear whole or not at all, and leave nothing behind where they do not."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_SUFFIX = ".partial"


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a path beside `path` to write to, which takes its place when the block ends well and is removed otherwise.

    What a process of this machine that was killed in such a block has left of `path` is removed as well.
    """
    path = Path(path)
    mine = path.with_name(f"{_prefix(path)}{os.getpid()}{_SUFFIX}")
    _remove_abandoned(path)
    try:
        yield mine
        os.replace(mine, path)
    finally:
        mine.unlink(missing_ok=True)


def _prefix(path: Path) -> str:
    # With the machine's name, because process numbers of another one that shares the folder say nothing here.
    return f".{path.name}.{os.uname().nodename}."


def _remove_abandoned(path: Path) -> None:
    with contextlib.suppress(OSError):  # a folder that cannot be listed or changed is for the write to complain about
        for entry in os.listdir(path.parent):
            pid = entry.removeprefix(_prefix(path)).removesuffix(_SUFFIX)
            if entry == f"{_prefix(path)}{pid}{_SUFFIX}" and pid.isdecimal() and not _runs(int(pid)):
                path.with_name(entry).unlink()


def _runs(pid: int) -> bool:
    """Whether a process of this number may be writing; this one only begins to."""
    if pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # somebody else's
        return True
    return True
