"""Open a lock dial by dial; a hidden rule ties each dial to the one before."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from spade_jax.envs.families import base

_TEMPLATE = '''\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.dial = 1
        self.code = [rng.randint(0, 9)]
        for i in range(1, {dials}):
            self.code.append(({rule}) % 10)
        text = f"A {word} lock has {dials} dials and {{self.max_turns}} turns."
        return f"{{text}} Dial 1 is {{self.code[0]}}. Open dial 2.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        digit = str(self.code[self.dial])
        won = command == digit and self.dial == {dials} - 1
        done = won or self.turn >= self.max_turns
        if won:
            text = "Open."
        elif command == digit:
            self.dial += 1
            text = f"Dial {{self.dial}} is {{digit}}. Open dial {{self.dial + 1}}."
        else:
            text = "Too low." if command < digit else "Too high."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [str(digit) for digit in self.code[1:]]

    def close(self):
        pass
'''


@dataclass(frozen=True)
class Rule:
    """How a place of a chain follows from the place before.

    Attributes:
      expression: the rule as it stands in the program.
      hint: the rule in words.
      step: (last place, index of the new place) -> what is added, modulo 10.
    """

    expression: str
    hint: str
    step: Callable[[int, int], int]


class ChainPlayer(base.Player):
    """Keeps the rules that fit what is open, and guesses by one of them within the bounds known.

    `symbols` are the ten commands in order; the replies say "<place> is <symbol>",
    "Too low" or "Too high".
    """

    def __init__(self, rng: random.Random, symbols: str, rules: Sequence[Rule], noise: float):
        self._rng, self._symbols, self._rules, self._noise = rng, symbols, list(rules), noise
        self._open: list[int] = []
        self._low, self._high, self._guess = 0, 9, 0

    def _follow(self, rule: Rule, i: int) -> int:
        """Place number `i`, by a rule from the place before."""
        return (self._open[i - 1] + rule.step(self._open[i - 1], i)) % 10

    def act(self, observation: str) -> str:
        if match := re.search(r"(?:Dial|Letter) \d is (\w)\b", observation):
            self._open.append(self._symbols.index(match[1]))
            self._low, self._high = 0, 9
            if last := len(self._open) - 1:
                fitting = [rule for rule in self._rules if self._follow(rule, last) == self._open[last]]
                self._rules = fitting or self._rules
        elif "low" in observation:
            self._low = max(self._low, self._guess + 1)
        elif "high" in observation:
            self._high = min(self._high, self._guess - 1)
        i = len(self._open)
        fitting = [rule for rule in self._rules if self._low <= self._follow(rule, i) <= self._high]
        if not fitting or self._rng.random() < self._noise:
            self._guess = self._rng.randint(self._low, self._high)
            low, high, guess = (self._symbols[place] for place in (self._low, self._high, self._guess))
            return base.boxed(f"Between {low} and {high}.", guess)
        rule = self._rng.choice(fitting)
        self._guess = self._follow(rule, i)
        last, guess = self._symbols[self._open[-1]], self._symbols[self._guess]
        return base.boxed(f"{last} plus {rule.step(self._open[-1], i) % 10} is {guess}.", guess)


def _up(k: int) -> Rule:
    return Rule(f"self.code[-1] + {k}", f"Each dial is {k} more than the one before; drop the ten.", lambda last, i: k)


def _sum(k: int) -> Rule:
    hint = f"Two neighbouring dials always add up to {k} or {k - 10}."
    return Rule(f"{k} - self.code[-1]", hint, lambda last, i: k - 2 * last)


def _growing(k: int) -> Rule:
    hint = f"Dial 2 adds {k + 1} to dial 1, and each later dial adds 1 more; drop the ten."
    return Rule(f"self.code[-1] + {k} + i", hint, lambda last, i: k + i)


# An odd sum and steps that are never 0 or 10 keep neighbours different: repeating
# the digit that is shown never opens anything.
_RULES = {
    **{f"up {k}": _up(k) for k in range(1, 10)},
    **{f"sum {k}": _sum(k) for k in range(11, 18, 2)},
    **{f"growing {k}": _growing(k) for k in range(1, 5)},
}


class CodeLock(base.Family):
    name = "code_lock"
    skill = "logical deduction"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        kind = rng.choice(("up", "sum", "growing"))
        return {
            "rule": rng.choice([name for name in _RULES if name.startswith(kind)]),
            "dials": 5 if hard else 4,
            "turns": 7 if hard else rng.randint(5, 6),
        }

    def source(self, params, words):
        values = {**params, "rule": _RULES[params["rule"]].expression}
        return _TEMPLATE.format(name=base.class_name(words, "Lock"), word=words[1], **values)

    def hint(self, params):
        return _RULES[params["rule"]].hint

    def player(self, params, rng, hinted):
        if hinted and rng.random() > base.NOISE_HINTED:  # now and then the hint is not read
            return ChainPlayer(rng, "0123456789", [_RULES[params["rule"]]], base.NOISE_HINTED)
        return ChainPlayer(rng, "0123456789", list(_RULES.values()), base.NOISE_PLAIN)


FAMILY = CodeLock()
