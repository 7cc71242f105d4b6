"""Fill a bag to exactly its limit with some of the items shown (a subset sum with a pattern)."""

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
        self.plan = []
        while len(self.plan) != {picks}:
            self.items = dict(zip("{letters}", rng.sample(range({low}, {high}), {size})))
            self.plan = [key for key in self.items if self.items[key] {test}]
        self.left = sum(map(self.items.get, self.plan))
        listing = ", ".join(f"{{key}} {{weight}}" for key, weight in self.items.items())
        return f"Fill the {word} to {{self.left}} in {{self.max_turns}} turns, a letter moves in or out: \
{{listing}}.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if command in self.items:
            self.left -= self.items[command]
            self.items[command] *= -1
            text = f"Moved {{command}}, {{self.left}} to go."
        else:
            text = f"No such item, {{self.left}} to go."
        won = self.left == 0
        done = won or self.turn >= self.max_turns
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.plan

    def close(self):
        pass
"""

# What sets the items of the right load apart: (test in the program, wording, the same test here).
_RULES = {
    "even": ("% 2 == 0", "an even weight", lambda weight: weight % 2 == 0),
    "odd": ("% 2 == 1", "an odd weight", lambda weight: weight % 2 == 1),
    "below": ("< 14", "a weight below 14", lambda weight: weight < 14),
    "above": ("> 19", "a weight above 19", lambda weight: weight > 19),
}


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._items: dict[str, int] = {}
        self._loaded: set[str] = set()
        self._left = 0

    def act(self, observation: str) -> str:
        if match := re.search(r"to (\d+) in", observation):
            self._left = int(match[1])
            self._items = {key: int(weight) for key, weight in re.findall(r"\b([A-Z]) (\d+)", observation)}
        elif match := re.search(r"Moved (\w), (-?\d+) to go", observation):
            self._loaded ^= {match[1]}
            self._left = int(match[2])
        slip = self._rng.random() < (base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN)
        wanted = [] if slip else self._wanted()
        key = self._rng.choice(wanted or list(self._items))
        return base.boxed(f"{self._left} to go, {key} comes next.", key)

    def _wanted(self) -> list[str]:
        """The items to move next: those out of place by the hint, or those that leave the weight of another."""
        if self._hinted:
            fits = _RULES[self._params["rule"]][2]
            return [key for key, weight in self._items.items() if fits(weight) != (key in self._loaded)]
        outside = {key: weight for key, weight in self._items.items() if key not in self._loaded}
        return [key for key, weight in outside.items() if self._left - weight in (0, *outside.values())]


class LoadLimit(base.Family):
    name = "load_limit"
    skill = "optimization"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        size = rng.randint(8, 9) if hard else rng.randint(6, 7)
        low = rng.randint(8, 9)
        rule = rng.choice(sorted(_RULES))
        return {
            "size": size,
            "letters": "ABCDEFGHI"[:size],
            "low": low,
            "high": low + 16,
            "rule": rule,
            "test": _RULES[rule][0],
            "picks": 3,
            "turns": 5,
        }

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Load"), word=words[1], **params)

    def hint(self, params):
        return f"The right load is exactly every item with {_RULES[params['rule']][1]}."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = LoadLimit()
