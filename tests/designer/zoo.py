"""Programs of tests/hostile/reward and what their headers say of them.

    # refused: CLASS[, CLASS]   the failure classes of which one is due
    # hint: TEXT                the hint that comes with the program

Adding an attack is adding a file there; one that must pass goes into `sound/` and has no first line.
"""

from __future__ import annotations

import pathlib
import re
from typing import NamedTuple

FOLDER = pathlib.Path(__file__).parents[1] / "hostile" / "reward"


class Case(NamedTuple):
    name: str
    source: str
    refused: tuple[str, ...]  # () for a sound program
    hint: str | None


def cases() -> list[Case]:
    """Every program of the zoo, unsound ones first."""
    paths = [*sorted(FOLDER.glob("*.py")), *sorted((FOLDER / "sound").glob("*.py"))]
    return [_case(path) for path in paths]


def _case(path: pathlib.Path) -> Case:
    source = path.read_text(encoding="utf-8")
    refused = re.search(r"^# refused: (.+)$", source, re.MULTILINE)
    hint = re.search(r"^# hint: (.+)$", source, re.MULTILINE)
    classes = tuple(word.strip() for word in refused[1].split(",")) if refused else ()
    assert (path.parent.name == "sound") == (not classes), f"{path}: an unsound program says how it is refused"
    return Case(path.stem, source, classes, hint[1] if hint else None)
