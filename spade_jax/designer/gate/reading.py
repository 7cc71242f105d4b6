"""Reading a text as a cheat would: in several disguises, by rules that need no thought.

A text becomes several token lists, one per disguise (`readings`). A *rule* takes tokens
from a list at a place that does not depend on the instance: counted from an end, or right
behind a certain word. A command that one rule reads off on nearly every seed was in plain
sight; one of several listed candidates, at a place that changes, was not.
"""

from __future__ import annotations

import base64
import binascii
import collections
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

GRAM = 8  # characters of a run that gives a long secret away
_UNITS = """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_NUMBERS = {word: i for i, word in enumerate(_UNITS.split())} | {w: 10 * i for i, w in enumerate(_TENS.split(), 2)}
_SCALES = {"hundred": 100, "thousand": 1000}

Tokens = list[str]


def tokens(text: str) -> Tokens:
    """Words and numbers, case-folded; "+" and "-" before a digit belong to the number."""
    return re.findall(r"(?<!\w)[-+]\d+|\w+", text.casefold())


def normal(text: str) -> str:
    """Letters and digits only, case-folded."""
    return "".join(re.findall(r"[^\W_]+", text.casefold()))


def readings(text: str) -> dict[str, Tokens]:
    """{disguise: tokens of the text when it is taken off}; "plain" for none."""
    plain = tokens(text)
    # Numbers and spelt words end at a comma, or a list of them would be one.
    parts = [_without_number_words(tokens(part)) for part in re.split(r"[,;.:!?()\n]", text)]
    return {
        "plain": plain,
        "number words": [word for part in parts for word in part],
        "spelled out": [word for part in parts for word in _joined(part)],
        "reversed": tokens(text[::-1]),
        "base64": tokens(" ".join(_decoded(text, r"[A-Za-z0-9+/_-]{4,}={0,2}", _from_base64))),
        "hex": [word for chunk in _decoded(text, r"(?:0[xX])?[0-9A-Fa-f]{2,}", _from_hex) for word in tokens(chunk)],
    }


def contains(text: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether `wanted` stands in `text` as one run."""
    return next(_places(text, wanted), None) is not None


class Rule(NamedTuple):
    """`kind` and `place`: FROM_START and an index, BEHIND or BEFORE and a word; read in a disguise."""

    disguise: str
    kind: str
    place: int | str


FROM_START, BEHIND, BEFORE = "from the start", "behind", "before"


def rules(text: Sequence[str], wanted: Sequence[str], disguise: str = "plain") -> set[Rule]:
    """The rules that read exactly `wanted` off `text`."""
    found: set[Rule] = set()
    for place in _places(text, wanted):
        found.add(Rule(disguise, FROM_START, place))
        # A word is a landmark where it first stands, for more than that takes thought.
        if place and text.index(text[place - 1]) == place - 1:
            found.add(Rule(disguise, BEHIND, text[place - 1]))
        end = place + len(wanted)
        if end < len(text) and text.index(text[end]) == end:
            found.add(Rule(disguise, BEFORE, text[end]))
        elif end == len(text):
            found.add(Rule(disguise, BEFORE, ""))
    return found


def common_rule(
    texts: Sequence[Mapping[str, Tokens]], wanted: Sequence[Sequence[str]], share: float, beyond: int = -1
) -> Rule | None:
    """The rule that reads wanted[i] off texts[i] for `share` of the i or more; places from the start are > `beyond`."""
    counts: collections.Counter[Rule] = collections.Counter()
    for text, run in zip(texts, wanted, strict=True):
        for disguise, words in text.items():
            counts.update(rules(words, run, disguise))
    usable = [
        rule
        for rule, count in counts.items()
        if count >= share * len(texts) and (rule.kind != FROM_START or rule.place > beyond)
    ]
    # A landmark before a place: the places that come later are then not tied to it.
    return min(usable, key=lambda rule: (rule.kind == FROM_START, rule.kind, str(rule.place)), default=None)


def shares_gram(text: str, secret: str) -> bool:
    """Whether some GRAM letters in a row of a long secret stand in the text."""
    text, secret = normal(text), normal(secret)
    return any(secret[i : i + GRAM] in text for i in range(len(secret) - GRAM + 1))


def _places(text: Sequence[str], wanted: Sequence[str]) -> Iterator[int]:
    """Where `wanted` begins in `text`."""
    size, wanted = len(wanted), list(wanted)
    if not size:
        return
    for place in range(len(text) - size + 1):
        if text[place] == wanted[0] and text[place : place + size] == wanted:
            yield place


def _without_number_words(words: Sequence[str]) -> Tokens:
    """ "seven hundred and thirty four" -> "734"; digits named one by one stay apart."""
    out: Tokens = []
    value: int | None = None
    last = 0  # the size of the word before: a smaller one continues the number
    for i, word in enumerate(words):
        if word in _NUMBERS:
            number = _NUMBERS[word]
            if value is not None and (last >= 100 or (20 <= last < 100 and 0 < number < 10)):
                value += number
            else:
                if value is not None:
                    out.append(str(value))
                value = number
            last = number
        elif word in _SCALES and value is not None:
            value = value // 100 * 100 + (value % 100 or 1) * 100 if word == "hundred" else value * 1000
            last = _SCALES[word]
        elif not (word == "and" and value is not None and last >= 100 and words[i + 1 : i + 2]):
            if value is not None:
                out.append(str(value))
            value = None
            out.append(word)
    if value is not None:
        out.append(str(value))
    return out


def _joined(words: Sequence[str]) -> Tokens:
    """Runs of single characters become one word: "s w o r d" -> "sword"."""
    out: Tokens = []
    run = ""
    for word in words:
        if len(word) == 1:
            run += word
            continue
        out += [run] if run else []
        run = ""
        out.append(word)
    return out + ([run] if run else [])


def _decoded(text: str, pattern: str, decode: Callable[[str], Iterator[str]]) -> Iterator[str]:
    for chunk in re.findall(pattern, text):
        yield from decode(chunk)


def _from_base64(chunk: str) -> Iterator[str]:
    standard = chunk.rstrip("=").replace("-", "+").replace("_", "/")
    try:
        raw = base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)
    except (binascii.Error, ValueError):
        return
    yield from _printable(raw)


def _from_hex(chunk: str) -> Iterator[str]:
    digits = chunk[2:] if chunk[:2] in ("0x", "0X") else chunk
    if len(digits) <= 16:
        yield str(int(digits, 16))
    if len(digits) % 2 == 0:
        yield from _printable(bytes.fromhex(digits))


def _printable(raw: bytes) -> Iterator[str]:
    try:
        decoded = raw.decode()
    except UnicodeDecodeError:
        return
    if decoded.isprintable():
        yield decoded
