"""Decoding of tokens as they are drawn, never in the middle of a character."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.tokens.tokenizer import Tokenizer

_INCOMPLETE = "\ufffd"  # what a decoder makes of the first bytes of a character


class IncrementalDecoder:
    """Gives out text piece by piece; the pieces add up to `tokenizer.decode` of all ids."""

    def __init__(self, tokenizer: Tokenizer):
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._shown = ""  # what has been given out of the present ids
        self._before = 0  # ids that only stand there because a decoder may look at what precedes

    def push(self, ids: Sequence[int]) -> str:
        """The text that new ids complete; bytes of an unfinished character are kept back."""
        self._ids += [int(i) for i in ids]
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_INCOMPLETE):
            return ""
        return self._give(text)

    def finish(self) -> str:
        """What was kept back."""
        return self._give(self._tokenizer.decode(self._ids))

    def _give(self, text: str) -> str:
        new = text[len(self._shown) :]
        # The ids before the last piece are forgotten, so that a long response costs no more per token than a short one.
        self._ids = self._ids[self._before :]
        self._before = len(self._ids)
        self._shown = self._tokenizer.decode(self._ids)
        return new
