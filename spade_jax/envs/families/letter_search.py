"""Find a hidden letter from "later" and "earlier" replies (bisection); never warm-started."""

from __future__ import annotations

import random
import re

from spade_jax.envs.families import base

_TEMPLATE = '''\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        size = rng.randint({small}, {large})
        start = rng.randint(1, 26 - size)
        self.letters = "abcdefghijklmnopqrstuvwxyz"[start:start + size]
        self.target = rng.choice(self.letters[1:-1])
        text = f"A {word} hides a letter between {{self.letters[0]}} and {{self.letters[-1]}}."
        return f"{{text}} Guess it in {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = command == self.target
        done = won or self.turn >= self.max_turns
        if won:
            text = "Correct."
        elif len(command) != 1 or command not in self.letters:
            text = "Answer with a letter."
        elif command < self.target:
            text = f"Later than {{command}}."
        else:
            text = f"Earlier than {{command}}."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [self.target]

    def close(self):
        pass
'''


class _Player(base.Player):
    def __init__(self, rng: random.Random, hinted: bool):
        self._rng, self._hinted = rng, hinted
        self._noise = base.NOISE_HINTED if hinted else base.NOISE_PLAIN
        self._low, self._high = 0, 0

    def act(self, observation: str) -> str:
        if match := re.search(r"between ([a-z]) and ([a-z])", observation):
            self._low, self._high = ord(match[1]), ord(match[2])
        elif match := re.search(r"Later than ([a-z])", observation):
            self._low = max(self._low, ord(match[1]))
        elif match := re.search(r"Earlier than ([a-z])", observation):
            self._high = min(self._high, ord(match[1]))
        if self._hinted and self._rng.random() > self._noise:
            guess = (self._low + self._high) // 2
        elif self._rng.random() > self._noise:
            guess = self._rng.randint(self._low + 1, self._high - 1)
        else:
            guess = self._rng.randint(self._low, self._high)
        return base.boxed(f"Between {chr(self._low)} and {chr(self._high)}.", chr(guess))


class LetterSearch(base.Family):
    name = "letter_search"
    skill = "mathematical reasoning"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        small = rng.randint(16, 18) if hard else rng.randint(11, 13)
        return {"small": small, "large": small + rng.randint(1, 2), "turns": 4}

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Letter"), word=words[1], **params)

    def hint(self, params):
        return "Guess the middle of the letters that remain. Answer with one letter only."

    def player(self, params, rng, hinted):
        return _Player(rng, hinted)


FAMILY = LetterSearch()
