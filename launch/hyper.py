"""What a sweep is made of: settings of config keys, varied one by one, side by side or in all combinations.

A sweep is a file with `get_hyper(h)`, where `h` is this module. All functions take and return lists of points, a
point being {config key: value}; lists are put one after the other with `+`.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

Point = dict[str, Any]


def fixed(key: str, value: Any) -> list[Point]:
    """One point, which sets one key."""
    return [{key: value}]


def sweep(key: str, values: Iterable[Any]) -> list[Point]:
    """A point per value of one key."""
    return [{key: value} for value in values]


def product(*parts: Sequence[Point]) -> list[Point]:
    """Every combination of one point of each part; the last part varies fastest.

    Raises:
      ValueError: two parts set the same key, or a part is empty.
    """
    for part in parts:
        if not part:
            raise ValueError("h.product got an empty part, which leaves no run; give each part a point")
    return [_merge(points, "product") for points in itertools.product(*parts)]


def zip(*parts: Sequence[Point]) -> list[Point]:  # noqa: A001 (read as h.zip)
    """The first point of every part together, then the second, ...

    Raises:
      ValueError: parts of different lengths, or two that set the same key.
    """
    lengths = [len(part) for part in parts]
    if len(set(lengths)) > 1:
        raise ValueError(f"h.zip got parts of {', '.join(map(str, lengths))} points; give parts of one length")
    return [_merge(points, "zip") for points in builtins.zip(*parts, strict=True)]


def _merge(points: Iterable[Point], name: str) -> Point:
    merged: Point = {}
    for point in points:
        if twice := merged.keys() & point.keys():
            raise ValueError(f"h.{name} sets {sorted(twice)[0]} in two parts; set it in one")
        merged |= point
    return merged
