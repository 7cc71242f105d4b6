"""Find out what a hidden operation does to two small numbers, and predict its results."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

from spade_jax.envs.families import base

_TEMPLATE = '''\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.right = 0
        self.pairs = [(rng.randint(1, {top}), rng.randint(1, {top})) for i in range(self.max_turns)]
        self.results = [str({rule}) for a, b in self.pairs]
        a, b = self.pairs[0]
        text = f"A {word} makes one number of two. Get {need} right in {{self.max_turns}} turns."
        return f"{{text}} Now {{a}} and {{b}}.", {{}}

    def step(self, action):
        result = self.results[self.turn % self.max_turns]
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        self.right += command == result
        won = self.right >= {need}
        done = won or self.turn >= self.max_turns
        if command == result:
            text = "Right."
        else:
            text = f"No, it was {{result}}."
        a, b = self.pairs[self.turn % self.max_turns]
        return f"{{text}} Now {{a}} and {{b}}.", float(won), done, False, {{"success": won}}

    def solution(self):
        return self.results[:{need}]

    def close(self):
        pass
'''

# Kind of rule -> (expression, hint, words of a player, function of a, b, k).
_RULES: dict[str, tuple[str, str, str, Callable[[int, int, int], int]]] = {
    "sum": ("a + b + {k}", "Add the two numbers, then add {k} more.", "sum plus {k}", lambda a, b, k: a + b + k),
    "difference": (
        "abs(a - b) + {k}",
        "Subtract the smaller number from the larger one, then add {k}.",
        "difference plus {k}",
        lambda a, b, k: abs(a - b) + k,
    ),
    "larger": (
        "max(a, b) + {k}",
        "Take the larger number and add {k}.",
        "larger plus {k}",
        lambda a, b, k: max(a, b) + k,
    ),
    "smaller": (
        "min(a, b) + {k}",
        "Take the smaller number and add {k}.",
        "smaller plus {k}",
        lambda a, b, k: min(a, b) + k,
    ),
    "second": (
        "b + {k}",
        "Ignore the first number and add {k} to the second.",
        "second plus {k}",
        lambda a, b, k: b + k,
    ),
}
_LARGEST_K = 6


class _Player(base.Player):
    """Keeps the rules that fit the replies; a plain one starts from all of them."""

    def __init__(self, rng: random.Random, rules: list[tuple[str, int]], noise: float):
        self._rng, self._rules, self._noise = rng, rules, noise
        self._pair = (0, 0)

    def act(self, observation: str) -> str:
        if match := re.search(r"it was (\d+)", observation):
            fitting = [(kind, k) for kind, k in self._rules if _RULES[kind][3](*self._pair, k) == int(match[1])]
            self._rules = fitting or self._rules
        if match := re.search(r"Now (\d+) and (\d+)", observation):
            self._pair = (int(match[1]), int(match[2]))
        kind, k = self._rng.choice(self._rules)
        result = _RULES[kind][3](*self._pair, k)
        if self._rng.random() < self._noise:
            result = max(1, result + self._rng.choice((-2, -1, 1, 2)))
        return base.boxed(f"{self._pair[0]} and {self._pair[1]}: {_RULES[kind][2].format(k=k)}.", result)


class MysteryOperation(base.Family):
    name = "mystery_operation"
    skill = "mathematical reasoning"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        return {
            "kind": rng.choice(sorted(_RULES)),
            "k": rng.randint(4, _LARGEST_K) if hard else rng.randint(1, 3),
            "top": rng.randint(8, 9),
            "need": 5 if hard else 4,
            "turns": 7 if hard else 6,
        }

    def source(self, params, words):
        rule = _RULES[params["kind"]][0].format(k=params["k"])
        return _TEMPLATE.format(name=base.class_name(words, "Rule"), word=words[1], rule=rule, **params)

    def hint(self, params):
        return _RULES[params["kind"]][1].format(k=params["k"])

    def player(self, params, rng, hinted):
        if hinted and rng.random() > base.NOISE_HINTED:  # now and then the hint is not read
            return _Player(rng, [(params["kind"], params["k"])], base.NOISE_HINTED)
        rules = [(kind, k) for kind in sorted(_RULES) for k in range(1, _LARGEST_K + 1)]
        return _Player(rng, rules, base.NOISE_PLAIN)


FAMILY = MysteryOperation()
