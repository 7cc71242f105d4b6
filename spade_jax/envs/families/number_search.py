"""Find a hidden number from "higher" and "lower" replies (bisection)."""

from __future__ import annotations

import random
import re

from spade_jax.envs.families import base

# The target lies strictly between the bounds shown: repeating a number that the
# observation shows never wins.
_TEMPLATE = '''\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.low = rng.randint({low}, {high})
        self.high = self.low + {span}
        self.target = rng.randint(self.low + 1, self.high - 1)
        text = f"A {word} hides a number between {{self.low}} and {{self.high}}."
        return f"{{text}} Guess it in {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = command == str(self.target)
        done = won or self.turn >= self.max_turns
        if won:
            text = "Correct."
        elif not command.isdecimal() or len(command) > 9:
            text = "Answer with a number."
        elif int(command) < self.target:
            text = f"Higher than {{command}}."
        else:
            text = f"Lower than {{command}}."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [str(self.target)]

    def close(self):
        pass
'''


class _Player(base.Player):
    def __init__(self, rng: random.Random, hinted: bool):
        self._rng, self._hinted = rng, hinted
        self._noise = base.NOISE_HINTED if hinted else base.NOISE_PLAIN
        self._low, self._high = 0, 0

    def act(self, observation: str) -> str:
        if match := re.search(r"between (\d+) and (\d+)", observation):
            self._low, self._high = int(match[1]), int(match[2])
        elif match := re.search(r"Higher than (\d+)", observation):
            self._low = max(self._low, int(match[1]))
        elif match := re.search(r"Lower than (\d+)", observation):
            self._high = min(self._high, int(match[1]))
        if self._hinted and self._rng.random() > self._noise:
            guess = (self._low + self._high) // 2
        elif self._rng.random() > self._noise:
            guess = self._rng.randint(self._low + 1, self._high - 1)
        else:
            guess = self._rng.randint(self._low, self._high)
        return base.boxed(f"Between {self._low} and {self._high}.", guess)


class NumberSearch(base.Family):
    name = "number_search"
    skill = "mathematical reasoning"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        low = rng.randint(5, 12)
        span = rng.randint(24, 30) if hard else rng.randint(13, 16)
        return {"low": low, "high": low + rng.randint(14, 28), "span": span, "turns": 5 if hard else 4}

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Search"), word=words[1], **params)

    def hint(self, params):
        return "Guess the middle of the numbers that remain. Answer with the number only."

    def player(self, params, rng, hinted):
        return _Player(rng, hinted)


FAMILY = NumberSearch()
