"""Reads commands and programs out of a policy's untrusted text."""

from __future__ import annotations

import re

from spade_jax.structs import BOX, boxed

_OPENING_FENCE = re.compile(r"^[ \t]*```(?:python|py)?[ \t]*$", re.MULTILINE)
_CLOSING_FENCE = re.compile(r"^[ \t]*```[ \t]*$", re.MULTILINE)
_END_OF_THINKING = "</think>"
_START_OF_THINKING = "<think>"
_TAG = re.compile(r"<(/?)(tool_call|answer)>")
MAX_TOOL_ACTION_CHARS = 8000
DONE = "done"


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


def action_of(response: str, kind: str = "game") -> str:
    """The action string a program receives.

    A game gets `\\boxed{command}`; a tool-use program the last complete `<tool_call>...</tool_call>`
    or `<answer>...</answer>`. Without one, both get the stripped response.
    """
    if kind == "tool":
        tagged = last_tagged(response)
        action = response.strip() if tagged is None else tagged
        return action if len(action) <= MAX_TOOL_ACTION_CHARS else action[:MAX_TOOL_ACTION_CHARS]
    command = last_boxed(response)
    return response.strip() if command is None else boxed(command)


def action_for(command: str, kind: str = "game") -> str:
    """The action string of a program's own command, as `solution()` lists it."""
    if kind == "tool":
        tag = "answer" if command == DONE else "tool_call"
        return f"<{tag}>{command}</{tag}>"
    return boxed(command)


def last_tagged(text: str) -> str | None:
    """The last complete `<tool_call>...</tool_call>` or `<answer>...</answer>`, tags included, or None.

    A closing tag ends the latest opening tag of its name, so of nested calls the innermost
    counts, and an unterminated one is passed over. A tag of the other name in between is content.
    """
    text = answer_part(text)
    last = None
    opened: dict[str, int] = {}
    for match in _TAG.finditer(text):
        closing, name = match.groups()
        if not closing:
            opened[name] = match.start()
        elif name in opened:
            last = (opened.pop(name), match.end())
    if last is None:
        return None
    tag, _, content = text[last[0] + 1 : last[1]].partition(">")
    return f"<{tag}>{content[: -len(tag) - 3].strip()}</{tag}>"


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
