"""Variants of a config: the words after the colon, as in `configs/spade_tiny.py:long,paper`."""

from __future__ import annotations

from collections.abc import Mapping


def parse_words(arg: str | None, known: Mapping[str, str]) -> frozenset[str]:
    """Splits a comma-separated argument and checks each word.

    Args:
      arg: what follows the colon, or None.
      known: word -> what it does.

    Raises:
      ValueError: a word that is not known; the message lists those that are.
    """
    words = [word.strip() for word in (arg or "").split(",") if word.strip()]
    for word in words:
        if word not in known:
            listing = ", ".join(f"{name} ({meaning})" for name, meaning in known.items())
            raise ValueError(f"unknown variant {word!r}; known: {listing}")
    return frozenset(words)
