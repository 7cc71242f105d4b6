"""Tokenizers of published models: a `tokenizer.json`, or what `gguf_vocabulary` makes of a GGUF file.

Control tokens are the tokens that the model's makers marked as special. Untrusted text is encoded with their
recognition off, so that a document that spells one becomes ordinary pieces.
"""

from __future__ import annotations

import copy
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spade_jax.tokens import gguf_vocabulary

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
# What of a folder belongs to its tokenizer; an exported model gets a copy.
FILES = (TOKENIZER_FILE, CONFIG_FILE, TEMPLATE_FILE, "special_tokens_map.json", "tokenizer.model", "vocab.json",
         "merges.txt", "added_tokens.json", "generation_config.json")  # fmt: skip

_SURROGATE = re.compile("[\ud800-\udfff]")
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token")


class HuggingFaceTokenizer:
    """A tokenizer of the `tokenizers` package behind our interface.

    Args:
      text: a whole tokenizer.json.
      named: names of the special tokens by their role ("bos_token", "eos_token", "pad_token", ...). A message ends
        with the end of text, see `ending_with`.

    Raises:
      ValueError: the package is not there, the text is no tokenizer, or it lacks a token.
    """

    def __init__(self, text: str, named: Mapping[str, str]):
        self.text, self.named = text, dict(named)
        self._trusting, self._plain = _backend(text), _backend(text)
        self._plain.encode_special_tokens = True
        added = self._trusting.get_added_tokens_decoder()
        self._control = {token.content: index for index, token in added.items() if token.special}
        names = sorted(self._control, key=len, reverse=True)
        self.control_pattern = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self.vocab_size = 1 + max(self._trusting.get_vocab(with_added_tokens=True).values())
        self.end_id = self._id_of(self.named.get("eos_token"), "end of text")
        # No token pads where none is named; what is behind a row's end is never looked at.
        self.pad_id = self._control.get(self.named.get("pad_token", ""), self.end_id)

    def _id_of(self, name: str | None, what: str) -> int:
        if name not in self._control:
            raise ValueError(f"the tokenizer has no control token for the {what} ({name!r})")
        return self._control[name]

    def ending_with(self, end: str) -> HuggingFaceTokenizer:
        """The same tokenizer, whose messages end with another control token."""
        other = copy.copy(self)
        other.end_id = self._id_of(end, "end of a message")
        return other

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(self._control.values())

    def encode(self, text: str) -> list[int]:
        """Ids of untrusted text; never a control token."""
        text = without_surrogates(text)
        ids = self._plain.encode(text, add_special_tokens=False).ids
        if not self.control_ids.isdisjoint(ids):  # the merges themselves lead there: part them inside the name
            parts = []
            start = 0
            for match in self.control_pattern.finditer(text):
                parts.append(text[start : match.start() + 1])
                start = match.start() + 1
            parts.append(text[start:])
            ids = [i for part in parts for i in self._plain.encode(part, add_special_tokens=False).ids]
            ids = [i for i in ids if i not in self.control_ids]
        return ids

    def encode_trusted(self, text: str) -> list[int]:
        """Ids of our own text, in which control tokens are written out."""
        return self._trusting.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids; control tokens leave no trace."""
        return self._trusting.decode([int(i) for i in ids], skip_special_tokens=True)

    def control_id(self, name: str) -> int:
        if name not in self._control:
            raise KeyError(f"the tokenizer has no control token {name!r}")
        return self._control[name]


def without_surrogates(text: str) -> str:
    """Lone surrogates, which no encoding of text can hold, become replacement characters."""
    return _SURROGATE.sub("\ufffd", text)


def _backend(text: str) -> Any:
    try:
        backend = gguf_vocabulary.package().Tokenizer.from_str(text)
    except ValueError:
        raise
    except Exception as error:  # the package raises nothing more special
        raise ValueError(f"it is no tokenizer.json ({error})") from error
    backend.no_truncation()
    backend.no_padding()
    return backend


def from_folder(folder: pathlib.Path) -> tuple[HuggingFaceTokenizer, str]:
    """(tokenizer, chat template) of a Hugging Face folder.

    Raises:
      ValueError: a file is missing or damaged, or there is no chat template.
    """
    file = folder / TOKENIZER_FILE
    if not file.is_file():
        raise ValueError(f"{folder} holds no {TOKENIZER_FILE}")
    settings: dict[str, Any] = {}
    if (folder / CONFIG_FILE).is_file():
        try:
            settings = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{folder / CONFIG_FILE} is no JSON ({error})") from error
    named = {}
    for role in _NAMED:
        token = settings.get(role)
        name = token.get("content") if isinstance(token, dict) else token
        if isinstance(name, str):
            named[role] = name
    if (folder / TEMPLATE_FILE).is_file():
        template: Any = (folder / TEMPLATE_FILE).read_text(encoding="utf-8")
    else:
        template = settings.get("chat_template")
        if isinstance(template, list):  # several by name
            template = {entry["name"]: entry["template"] for entry in template}.get("default")
    if not isinstance(template, str):
        raise ValueError(f"{folder} holds no chat template, so it is no model to talk with; take an instruct model")
    return HuggingFaceTokenizer(file.read_text(encoding="utf-8"), named), template


def from_gguf(path: pathlib.Path) -> tuple[HuggingFaceTokenizer, str]:
    """(tokenizer, chat template) of a GGUF file.

    Raises:
      ValueError: it has an unknown kind of vocabulary, or no chat template.
    """
    try:
        import gguf
    except ImportError as error:
        raise ValueError(f"reading {path} needs the gguf package; install spade_jax[hf]") from error
    try:
        fields = gguf.GGUFReader(path).fields
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise ValueError(f"{path} is no GGUF file, or not a whole one ({error})") from error

    def field(name: str, default: Any = None) -> Any:
        full = f"tokenizer.{name}"
        return fields[full].contents() if full in fields else default

    template = field("chat_template")
    if template is None:
        raise ValueError(f"{path} holds no chat template, so it is no model to talk with; take an instruct model")
    try:
        text = gguf_vocabulary.tokenizer_json(field)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    tokens = field("ggml.tokens")
    named = {role: tokens[index] for role in _NAMED if (index := _named_id(field, role)) is not None}
    return HuggingFaceTokenizer(text, named), template


def write(folder: pathlib.Path, tokenizer: HuggingFaceTokenizer, template: str) -> None:
    """Writes a tokenizer that came from no folder as the files of one."""
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **tokenizer.named}
    (folder / TOKENIZER_FILE).write_text(tokenizer.text, encoding="utf-8")
    (folder / CONFIG_FILE).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _named_id(field: Any, role: str) -> int | None:
    spelled = {"pad_token": "padding_token", "unk_token": "unknown_token"}
    return field(f"ggml.{spelled.get(role, role)}_id")
