"""Tokenizers behind one small interface; here the SentencePiece one.

Control tokens are SentencePiece *control* symbols: no text encodes to them, so a
document or an environment that spells `<|assistant|>` stays plain text.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterable, Sequence
from typing import Protocol

import sentencepiece

PAD, BOS, END = "<|pad|>", "<|bos|>", "<|end|>"
SYSTEM, USER, ASSISTANT = "system", "user", "assistant"
MESSAGE_ROLES = (SYSTEM, USER, ASSISTANT)


def role_header(role: str) -> str:
    """The control token that opens a message of `role`."""
    return f"<|{role}|>"


class Tokenizer(Protocol):
    """What the rest of the code needs of a tokenizer.

    Attributes:
      vocab_size: number of ids.
      pad_id: id that fills the right of a row.
      end_id: id that ends every message; sampling stops at it.
    """

    vocab_size: int
    pad_id: int
    end_id: int

    def encode(self, text: str) -> list[int]:
        """Ids of untrusted text; never a control token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens leave no trace."""

    def control_id(self, name: str) -> int:
        """The id of a control token; KeyError if there is none."""


class SentencePieceTokenizer:
    """A SentencePiece model with our control symbols."""

    def __init__(self, path: str | pathlib.Path):
        path = pathlib.Path(path)
        if not path.is_file():
            raise ValueError(f"tokenizer model {path} does not exist; build it with `python -m spade_jax.warmstart`")
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        self.vocab_size = self._pieces.vocab_size()
        self.pad_id = self.control_id(PAD)
        self.end_id = self.control_id(END)

    def encode(self, text: str) -> list[int]:
        return self._pieces.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        return self._pieces.decode([int(i) for i in ids])

    def control_id(self, name: str) -> int:
        index = self._pieces.piece_to_id(name)
        if not self._pieces.is_control(index):
            raise KeyError(f"the tokenizer has no control token {name!r}")
        return index


def train_sentencepiece(texts: Iterable[str], path: str | pathlib.Path, vocab_size: int) -> None:
    """Trains a BPE model made for programs and writes it to `path`.

    White space is kept as it stands and may lie inside a piece, so that a line of
    boilerplate becomes few tokens; a newline is a piece of its own, so that no
    piece spans two lines. One thread: the result is the same on every run.
    """
    model = io.BytesIO()  # given a file name, the trainer would write it into the model
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        vocab_size=vocab_size,
        model_type="bpe",
        split_by_whitespace=False,
        split_by_number=True,
        split_digits=True,
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        byte_fallback=True,
        character_coverage=1.0,
        required_chars="".join(map(chr, range(33, 127))),
        user_defined_symbols=["\n", "\\boxed{"],
        control_symbols=[PAD, *map(role_header, MESSAGE_ROLES), BOS, END],
        unk_id=0,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        num_threads=1,
        max_sentence_length=1 << 16,
        max_sentencepiece_length=48,
        minloglevel=2,
    )
    pathlib.Path(path).write_bytes(model.getvalue())
