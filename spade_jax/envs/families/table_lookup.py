"""Follow links through a table with a lookup tool, then answer from what was read."""

from __future__ import annotations

import random
import re

from spade_jax.envs.families import base

_TEMPLATE = """\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.path = rng.sample("{keys}", {hops})
        value, past = rng.sample(range({low}, {high}), 2)
        self.answer = value {change}
        self.table = dict(zip(self.path, self.path[1:] + [value]))
        return (
            f"{word} table: {{self.path[0]}} holds {{self.path[1]}}, follow to a number. Number {{past}} gave answer "
            f"{{past {change}}}. get K reads K, say N answers. {{self.max_turns}} turns."
        ), {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = command == f"say {{self.answer}}"
        done = won or self.turn >= self.max_turns
        if won:
            text = "Correct."
        elif command[4:] in self.table:
            text = f"{{command[4:]}} holds {{self.table[command[4:]]}}."
        else:
            text = "Not so."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [f"get {{key}}" for key in self.path[1:]] + [f"say {{self.answer}}"]

    def close(self):
        pass
"""


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._shift = params["shift"]
        self._key, self._value = "", 0

    def act(self, observation: str) -> str:
        if match := re.search(r"(?:holds) ([A-Z])\b", observation):
            self._key = match[1]
        elif match := re.search(r"holds (\d+)", observation):
            self._value = int(match[1])
        slip = self._rng.random() < (base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN)
        if not self._value:
            key = self._rng.choice(self._params["keys"]) if slip else self._key
            return base.boxed(f"Key {key} comes next.", f"get {key}")
        shift = self._shift if self._hinted or self._rng.random() < 0.3 else 0
        answer = self._value + shift + (self._rng.choice((-1, 1)) if slip else 0)
        return base.boxed(f"The number is {self._value}.", f"say {answer}")


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
            "high": low + rng.randint(25, 40),
            "shift": shift,
            "change": f"{'+' if shift > 0 else '-'} {abs(shift)}",
            "turns": hops + 2,
        }

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Table"), word=words[1].capitalize(), **params)

    def hint(self, params):
        return f"Read each key you are sent to. The answer is the number {params['change']}."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = TableLookup()
