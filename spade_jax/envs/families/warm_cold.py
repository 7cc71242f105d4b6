"""Find a cell on a line from echoes that grow with the distance by a hidden rule."""

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
        self.low = rng.choice([0, 10])
        self.high = self.low + rng.randint({least}, {most})
        self.target = rng.randint(self.low + 4, self.high - 1)
        return f"A {word} hides in a cell, {{self.low}} to {{self.high}}. Guesses echo. {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = command == str(self.target)
        done = won or self.turn >= self.max_turns
        if won:
            text = "Found."
        elif not command.isdecimal() or len(command) > 9:
            text = "Answer with a number."
        else:
            gap = abs(int(command) - self.target)
            text = f"The echo at {{command}} is {{{rule}}}."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [str(self.target)]

    def close(self):
        pass
'''

_INSIGHT_PLAIN = 0.95  # how often a plain player works the rule out of two echoes


class _Player(base.Player):
    def __init__(self, factor: int, extra: int, rng: random.Random, hinted: bool):
        self._rng, self._hinted = rng, hinted
        self._factor, self._extra = (factor, extra) if hinted else (1, 0)
        self._low, self._high = 0, 0
        self._echoes: dict[int, int] = {}

    def act(self, observation: str) -> str:
        if match := re.search(r"cell, (\d+) to (\d+)", observation):
            self._low, self._high = int(match[1]), int(match[2])
        elif match := re.search(r"echo at (\d+) is (\d+)", observation):
            self._echoes[int(match[1])] = int(match[2])
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        if self._rng.random() < noise:
            return base.boxed("Try a cell.", self._rng.randint(self._low, self._high))
        echo = self._echoes.get(self._low)
        if echo is None:
            return base.boxed("Start at the lowest cell.", self._low)
        far = self._echoes.get(self._low + echo)
        if far is not None and not self._hinted and self._rng.random() < _INSIGHT_PLAIN:
            # An echo of gap + extra, or of twice the gap, is off by half the echo heard there.
            return base.boxed("Half the second echo is too much.", self._low + echo - far // 2)
        gap = (echo - self._extra) // self._factor
        return base.boxed(f"Echo {echo}, so gap {gap}.", self._low + gap)


class WarmCold(base.Family):
    name = "warm_cold"
    skill = "spatial reasoning"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        factor, extra = rng.choice([(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 0)])
        least = rng.randint(30, 32) if hard else rng.randint(19, 21)
        return {"factor": factor, "extra": extra, "least": least, "most": least + 9, "turns": 3}

    def source(self, params, words):
        rule = "2 * gap" if params["factor"] == 2 else f"gap + {params['extra']}"
        return _TEMPLATE.format(name=base.class_name(words, "Echo"), word=words[1], rule=rule, **params)

    def hint(self, params):
        if params["factor"] == 2:
            return "Guess the lowest cell first. Then add half of its echo to it."
        return f"Guess the lowest cell first. Then add its echo and take away {params['extra']}."

    def player(self, params, rng, hinted):
        return _Player(params["factor"], params["extra"], rng, hinted)


FAMILY = WarmCold()
