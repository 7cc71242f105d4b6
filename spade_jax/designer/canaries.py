"""Programs of known worth that pass through the gate at every regeneration.

A gate that lets the bad ones through, or stops the sound one, is out of order, whatever
the reason: a changed sandbox, a changed Python, a change of ours. Nobody trains on
them. Their words and numbers vary by draw, so that nothing can know them by heart.
"""

from __future__ import annotations

import dataclasses
import json
import random

from spade_jax.envs.bundled import THEME_WORDS


@dataclasses.dataclass(frozen=True)
class Canary:
    """One program.

    Attributes:
      name: "leaky", "coin flip", "solved" or "sound".
      source: the program.
      check: the gate check that is to stop it, "" for none.
      failures: the verdicts that are right, None for sound.
    """

    name: str
    source: str
    check: str
    failures: tuple[str | None, ...]


_SOURCE = """\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.low = rng.randint({least}, {most})
        self.goal = self.low + rng.randint(1, {span})
        self.lucky = rng.random() < 0.5
        return f"{opening}", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = {won}
        done = won or self.turn >= self.max_turns
        text = "The {word} is found." if won else "The {word} is {{}}.".format(
            "higher" if command.isdecimal() and len(command) < 6 and int(command) < self.goal else "lower or elsewhere"
        )
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [str(self.goal)]
"""

_RANGE = "The {word} lies in a drawer from {{self.low}} to {{self.low + {last}}}, ends left out."
_FOUND = "command == str(self.goal)"


_TOOL_SOURCE = """\
from toolkit import ToolEnvironment


class {name}(ToolEnvironment):
    max_turns = {turns}

    def setup(self, rng):
        names = rng.sample({names}, 4)
        self.level = dict(zip(names, rng.sample(range({least}, {most}), 4)))
        self.goal = self.level[names[1]]
        self.used = False
        self.lucky = rng.random() < 0.5
        for a, b in zip(names, names[1:]):
            n = self.level[b]
            self.ask(f"{text}", lambda a=a, n=n: {met}, ["read", b], ["set", a, n])

    def read(self, item: str):
        return self.level[item]

    def set(self, item: str, level: int):
        self.used = True
        if item not in self.level:
            return "unknown"
        self.level[item] = level

    def highest(self):
        return max(self.level, key=self.level.get)

    def secrets(self):
        return [str(self.goal)]
"""

_REQUEST = "Set {a} to the level of {b}."
_CARRIED_OUT = "self.level[a] == n"


def draw(rng: random.Random, kind: str = "game") -> list[Canary]:
    """One canary of each name, programs of the kind "game" or "tool"."""
    if kind == "tool":
        return [
            _tool_canary(rng, "leaky", "sealed", ("leak",), text=_REQUEST + " It is {n}."),
            # As among games; where luck holds on every seed tried, its messages are met all at once.
            _tool_canary(rng, "coin flip", "nontrivial", ("trivial", "unsolvable"), met="self.used and self.lucky"),
            _tool_canary(rng, "solved", "contract", ("contract",), met="self.level[a] != n"),
            _tool_canary(rng, "sound", "", (None,)),
        ]
    return [
        _canary(rng, "leaky", "sealed", ("leak",), opening=_RANGE + " It is in drawer {{self.goal}}."),
        # Stopped by whichever check meets it first: no policy does worse than another, and the solution loses.
        _canary(rng, "coin flip", "nontrivial", ("trivial", "unsolvable"), won="self.lucky"),
        _canary(rng, "solved", "nontrivial", ("trivial",), won="True"),
        _canary(rng, "sound", "", (None,)),
    ]


def _canary(
    rng: random.Random,
    name: str,
    check: str,
    failures: tuple[str | None, ...],
    opening: str = _RANGE,
    won: str = _FOUND,
) -> Canary:
    first, word = rng.sample(THEME_WORDS, 2)
    span = rng.randint(24, 40)
    least = rng.randint(10, 90)
    source = _SOURCE.format(
        name=f"{first.capitalize()}Drawer",
        turns=rng.randint(5, 7),
        least=least,
        most=least + rng.randint(20, 60),
        span=span,
        word=word,
        opening=opening.format(word=word, last=span + 1),
        won=won,
    )
    return Canary(name, source, check, failures)


def _tool_canary(
    rng: random.Random,
    name: str,
    check: str,
    failures: tuple[str | None, ...],
    text: str = _REQUEST,
    met: str = _CARRIED_OUT,
) -> Canary:
    first, *names = rng.sample(THEME_WORDS, rng.randint(6, 9))
    least = rng.randint(1000, 4000)
    source = _TOOL_SOURCE.format(
        name=f"{first.capitalize()}Levels",
        turns=rng.randint(12, 16),
        names=json.dumps(names),
        least=least,
        most=least + rng.randint(1000, 5000),
        text=text,
        met=met,
    )
    return Canary(name, source, check, failures)
