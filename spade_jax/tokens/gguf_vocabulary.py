"""The vocabulary that a GGUF file holds as the text of a tokenizer.json: byte-level BPE, or SentencePiece's BPE."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

# A GGUF file's metadata under "tokenizer.": name and default to value.
Field = Callable[..., Any]

# Splitting of text before the merges of byte-level BPE, by the name that GGUF gives it.
_WORDS = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
}
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)  # types of tokens
_SPACE = "▁"  # what SentencePiece writes for a space
_REMEDY = "give tokens.tokenizer the folder of the original model"


def package() -> Any:
    """The `tokenizers` package.

    Raises:
      ValueError: it is not there.
    """
    try:
        import tokenizers  # an extra: the embedded policy does without
    except ImportError as error:
        raise ValueError("this tokenizer needs the tokenizers package; install spade_jax[hf]") from error
    return tokenizers


def tokenizer_json(field: Field) -> str:
    """The text of a tokenizer.json.

    Raises:
      ValueError: an unknown kind of vocabulary, or one that is not whole.
    """
    kind, words = field("ggml.model"), field("ggml.pre", "gpt-2")
    tokens, types = field("ggml.tokens"), field("ggml.token_type")
    if not tokens or not types or len(types) != len(tokens):
        raise ValueError(f"it holds no vocabulary with a type for every token; {_REMEDY}")
    if kind == "gpt2" and words in _WORDS:
        tokenizer = _byte_level(tokens, field("ggml.merges"), words)
        special = (_CONTROL,)
    elif kind == "llama":
        tokenizer = _sentencepiece(tokens, types, field)
        special = (_UNKNOWN, _CONTROL)
    else:
        raise ValueError(
            f"a vocabulary of kind {kind}/{words} is not known, only llama, and gpt2 with "
            f"{', '.join(_WORDS)}; {_REMEDY}"
        )
    added = package().AddedToken
    for add, kinds in ((tokenizer.add_special_tokens, special), (tokenizer.add_tokens, (_USER_DEFINED,))):
        add([
            added(token, normalized=False, special=kinds is special)
            for token, its_kind in zip(tokens, types, strict=True)
            if its_kind in kinds
        ])  # fmt: skip
    return tokenizer.to_str()


def _byte_level(tokens: Sequence[str], merges: Sequence[str], words: str) -> Any:
    parts = package()
    model = parts.models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in merges],
        ignore_merges=words == "llama-bpe",
    )
    tokenizer = parts.Tokenizer(model)
    splitting = parts.pre_tokenizers
    if words == "qwen2":
        tokenizer.normalizer = parts.normalizers.NFC()
    if words == "smollm":
        first = splitting.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = splitting.Sequence([first, splitting.ByteLevel(add_prefix_space=False)])
    elif _WORDS[words] is None:
        tokenizer.pre_tokenizer = splitting.ByteLevel(add_prefix_space=False)
    else:
        first = splitting.Split(parts.Regex(_WORDS[words]), behavior="isolated")
        rest = splitting.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = splitting.Sequence([first, rest])
    tokenizer.decoder = parts.decoders.ByteLevel()
    return tokenizer


def _sentencepiece(tokens: Sequence[str], types: Sequence[int], field: Field) -> Any:
    """SentencePiece's BPE (Kudo & Richardson 2018, arXiv:1808.06226): of all pairs the one that makes the piece of the
    highest score is merged first; what no piece spells becomes bytes. Text is taken as it stands, not normalised.
    """
    scores = field("ggml.scores")
    if scores is None or len(scores) != len(tokens):
        raise ValueError(f"its SentencePiece vocabulary has no score for every token; {_REMEDY}")
    if field("ggml.precompiled_charsmap") is not None or field("ggml.remove_extra_whitespaces", False):
        raise ValueError(f"its SentencePiece vocabulary normalises text, which is not supported; {_REMEDY}")
    parts = package()
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    model = parts.models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=_merges(tokens, types, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=_BYTE in types,
    )
    tokenizer = parts.Tokenizer(model)
    normal, decode = parts.normalizers, parts.decoders
    steps = [normal.Replace(" ", _SPACE)]
    undo = [decode.Replace(_SPACE, " "), decode.ByteFallback(), decode.Fuse()]
    if field("ggml.add_space_prefix", True):
        steps.insert(0, normal.Prepend(_SPACE))
        undo.append(decode.Strip(" ", 1, 0))
    tokenizer.normalizer, tokenizer.decoder = normal.Sequence(steps), decode.Sequence(undo)
    return tokenizer


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """All pairs of pieces that make a piece, those of the highest score first."""
    pieces = {
        token: score for token, kind, score in zip(tokens, types, scores, strict=True) if kind in (_NORMAL, _UNUSED)
    }
    found = [
        (piece[:cut], piece[cut:])
        for piece in sorted(pieces, key=pieces.get, reverse=True)
        for cut in range(1, len(piece))
    ]
    return [pair for pair in found if pair[0] in pieces and pair[1] in pieces]
