"""Commands to try without knowing the program: garbage, and what an observation seems to offer."""

from __future__ import annotations

import re

# Commands that no program expects. Some pass `str.isdigit` and break `int`, some are
# longer than `int` accepts, some break naive unboxing; a responder may box nothing at all.
GARBAGE = (
    "\\boxed{}",
    "",
    "\\boxed{\u00b2}",
    "\\boxed{\u0661\u0662}",
    "\\boxed{-1}",
    "\\boxed{1e999}",
    "\\boxed{nan}",
    "\\boxed{}{}",
    "\\boxed{",
    "}}{{",
    "\\boxed{0 0 0 0}",
    "\\boxed{,}",
    "\\boxed{a:b=c}",
    "\\boxed{(1, 2)}",
    "\\boxed{None}",
    "\\boxed{\U0001f600 \n\t\\}",
    "I am not sure what to do.",
    "\\boxed{\u0130\u2167\u00df}",
    "\\boxed{\x00\u202e\ufeff}",
    "\\boxed{" + "9" * 5000 + "}",
    "\\boxed{" + "go " * 2000 + "}",
)
PLAIN_GARBAGE = ("", "\u00b2", "-1", "nan", "a:b=c", "None")  # commands, where those above are whole responses


def listed_actions(observation: str) -> list[str]:
    """Commands that an observation seems to offer: quoted, bracketed, or "a, b or c"; at most 20."""
    found: list[str] = []
    found += re.findall(r"(?<!\w)'([^'\n]{1,40})'(?!\w)", observation)
    found += re.findall(r'"([^"\n]{1,40})"', observation)
    found += re.findall(r"`([^`\n]{1,40})`", observation)
    for group in re.findall(r"[\[({]([^\[\](){}\n]{1,120})[\])}]", observation):
        found += re.split(r"[,|/]", group)
    for group in re.findall(r"[\w-]+(?:, [\w-]+){0,19},? (?:or|and) [\w-]+", observation):
        found += re.split(r",? (?:or|and) |, ", group)
    return list(dict.fromkeys(action.strip() for action in found if action.strip()))[:20]
