"""Follow links through a table with a lookup tool, then answer from what was read."""

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
        self.path = rng.sample("{keys}", {hops})
        value = rng.randint({low}, {high})
        self.answer = value {change}
        self.table = dict(zip(self.path, self.path[1:] + [value]))
        return (
            f"A {word} table: {{self.path[0]}} holds {{self.path[1]}}. Follow the keys to a number. "
            f"get K reads key K, say N answers. {{self.max_turns}} turns."
        ), {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        verb, _, key = command.partition(" ")
        won = command == f"say {{self.answer}}"
        done = won or self.turn >= self.max_turns
        if won:
            text = "Correct."
        elif verb == "get":
            text = f"Key {{key[:1]}} holds {{self.table.pop(key, 'nothing')}}."
        elif self.path[-1] in self.table or not key.isdecimal() or len(key) > 9:
            text = "Not so."
        else:
            text = f"Wrong, {{abs(self.answer - int(key))}} off."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [f"get {{key}}" for key in self.path[1:]] + [f"say {{self.answer}}"]

    def close(self):
        pass
'''


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng = params, rng
        self._noise = base.NOISE_HINTED if hinted else base.NOISE_PLAIN
        self._shift = params["shift"] if hinted else 0
        self._shifts = [0]
        self._key, self._value = "", 0

    def act(self, observation: str) -> str:
        if match := re.search(r"(\w) holds ([A-Z])\.", observation):
            self._key = match[2]
        elif match := re.search(r"holds (\d+)", observation):
            self._value = int(match[1])
            self._shifts = [self._shift]
        elif match := re.search(r"(\d+) off", observation):
            self._shifts = [int(match[1]), -int(match[1])]
        if self._value:
            shift = self._shifts.pop(0) if len(self._shifts) > 1 else self._shifts[0]
            if self._rng.random() < self._noise:
                shift += self._rng.choice((-1, 1))
            return base.boxed(f"I read {self._value}.", f"say {self._value + shift}")
        key = self._rng.choice(self._params["keys"]) if self._rng.random() < self._noise else self._key
        return base.boxed(f"Key {key} comes next.", f"get {key}")


class TableLookup(base.Family):
    name = "table_lookup"
    skill = "logical deduction"

    def parameters(self, rng, split):
        hops = 5 if split == base.HELD_OUT else rng.randint(3, 4)
        low = rng.randint(10, 40)
        first = rng.randint(0, 12)
        shift = rng.choice((-4, -3, -2, -1, 1, 2, 3, 4))
        return {
            "keys": "ABCDEFGHIJKLMNOPQRST"[first : first + rng.randint(6, 8)],
            "hops": hops,
            "low": low,
            "high": low + rng.randint(10, 20),
            "shift": shift,
            "change": f"{'+' if shift > 0 else '-'} {abs(shift)}",
            "turns": hops + 2,
        }

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Table"), word=words[1], **params)

    def hint(self, params):
        return f"Read each key you are sent to. The answer is the number {params['change']}."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = TableLookup()
