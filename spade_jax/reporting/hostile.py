"""Text that programs and policies wrote, made safe and honest to look at.

Escaping alone is not enough: bidirectional marks reorder code on the screen, control
characters hide it, stacked combining marks paint over the neighbours, and a megabyte of
anything buries the page.
"""

from __future__ import annotations

import html
import keyword
import re
import unicodedata

# Other, line and paragraph separators, surrogates: nothing of these has a glyph of its own.
_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_MARK_CATEGORIES = frozenset({"Mn", "Me"})
_MAX_MARKS = 2  # combining marks on one character; no living script needs more than a few

# One alternative per colour, the comment and string first: what is inside them is not code.
_PYTHON = re.compile(
    r"(?P<comment>#[^\n]*)"
    r"|(?P<string>[rbfuRBFU]{0,2}(?:\"\"\".*?(?:\"\"\"|\Z)|'''.*?(?:'''|\Z)"
    r"|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?))"
    r"|(?P<number>\b\d[\w.]*)"
    r"|(?P<name>[^\W\d]\w*)",
    re.DOTALL,
)


def escape(text: object) -> str:
    """HTML of a text, for element content and for quoted attributes; see `visible`."""
    return html.escape(visible(str(text)), quote=True)


def visible(text: str) -> str:
    r"""The text with every character that has no glyph written out, e.g. `\u202e`.

    Newlines and tabs stay. Combining marks beyond two on one character are dropped.
    """
    shown = []
    marks = 0
    for character in text.replace("\r\n", "\n"):
        category = unicodedata.category(character)
        marks = marks + 1 if category in _MARK_CATEGORIES else 0
        if character in "\n\t":
            shown.append(character)
        elif category in _HIDDEN_CATEGORIES:
            code = ord(character)
            shown.append(f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
        elif marks <= _MAX_MARKS:
            shown.append(character)
    return "".join(shown)


def shown(text: str, limit: int) -> str:
    """HTML of at most `limit` characters of untrusted text, and of how many were left out."""
    return escape(text[:limit]) + _left_out(text, limit)


def one_line(text: str, limit: int) -> str:
    """`shown`, with every run of white space as one space."""
    return shown(" ".join(text[: 4 * limit].split()), limit)


def python(source: str, limit: int) -> str:
    """`shown`, with comments, strings, numbers and keywords in `<span class="...">`."""
    text = visible(source[:limit])
    pieces, end = [], 0
    for match in _PYTHON.finditer(text):
        kind = match.lastgroup
        if kind == "name":
            if not keyword.iskeyword(match[0]):
                continue
            kind = "keyword"
        pieces += [escape(text[end : match.start()]), f'<span class="py-{kind}">{escape(match[0])}</span>']
        end = match.end()
    return "".join(pieces) + escape(text[end:]) + _left_out(source, limit)


def _left_out(text: str, limit: int) -> str:
    more = len(text) - limit
    return f'<span class="cut">… {more:,} more characters</span>' if more > 0 else ""
