"""Reads commands and programs out of a policy's untrusted text."""

from __future__ import annotations

import re

from spade_jax.structs import BOX, boxed

_OPENING_FENCE = re.compile(r"^[ \t]*```(?:python|py)?[ \t]*$", re.MULTILINE)
_CLOSING_FENCE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_END_OF_THINKING = "</think>"
_START_OF_THINKING = "<think>"


def answer_part(text: str) -> str:
    """What follows the last `</think>`; an unclosed `<think>` means no answer at all."""
    _, closed, rest = text.rpartition(_END_OF_THINKING)
    if closed:
        text = rest
    return "" if _START_OF_THINKING in text else text


def last_boxed(text: str) -> str | None:
    """The content of the last brace-balanced `\\boxed{...}`, or None.

    An unbalanced last box is passed over in favour of an earlier balanced one:
    a response that was cut off inside its box has not answered with it.
    """
    text = answer_part(text)
    best: tuple[int, int] | None = None
    open_braces: list[int] = []  # one pass with a stack: hostile nesting must not cost quadratic time
    for match in re.finditer(r"[{}]", text):
        if match[0] == "{":
            open_braces.append(match.start())
        elif open_braces:
            start = open_braces.pop()
            is_box = text.endswith(BOX, 0, start + 1)
            if is_box and (best is None or start > best[0]):
                best = (start, match.start())
    return None if best is None else text[best[0] + 1 : best[1]].strip()


def action_of(response: str) -> str:
    """The action string a program receives: `\\boxed{command}`, or the stripped response."""
    command = last_boxed(response)
    return response.strip() if command is None else boxed(command)


def fenced_program(text: str) -> str | None:
    """The last complete fenced block of a designer's response, or None."""
    text = answer_part(text)
    program = None
    position = 0
    while opening := _OPENING_FENCE.search(text, position):
        closing = _CLOSING_FENCE.search(text, opening.end())
        if closing is None:
            break
        program = text[opening.end() + 1 : closing.start()]
        position = closing.end()
    return program
