"""Question two witnesses, then name a suspect; how the witnesses lie is fixed per program."""

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
        self.asked = set()
        people = [c + s for c in ("{c0} ", "{c1} ", "{c2} ") for s in ("{s0}", "{s1}")]
        numbers = rng.sample(range(1, 10), 6)
        i = rng.randint(0, 5)
        self.thief = str(numbers[i])
        self.told = dict(zip(("color", "{size}"), people[{rule}].split()))
        rows = ", ".join(f"{{p}} {{n}}" for p, n in zip(people, numbers))
        return f"Who took the {word}? {{rows}}. Ask color, {size}, then a number.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        won = command == self.thief and len(self.asked) == 2
        done = won or self.turn >= self.max_turns
        text = "Correct." if won else "Not proven."
        if command in self.told:
            self.asked.add(command)
            text = f"One says {{self.told[command]}}."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return ["color", "{size}", self.thief]

    def close(self):
        pass
'''

_COLORS = ("red", "blue", "gray", "pink", "tan", "gold")
_PAIRS = {"size": ("tall", "short"), "age": ("old", "young")}

# People are numbered color by color, so a step of 2 changes the color only and
# `^ 1` the other attribute only. Lie -> (index of the person described, color
# step, whether the other attribute is swapped).
_LIES = {
    "swap": ("i ^ 1", 0, True),
    "next": ("(i + 2) % 6", 1, False),
    "before": ("i - 2", 2, False),
}
_HARD_LIES = {
    "swap and next": ("(i + 2) % 6 ^ 1", 1, True),
    "swap and before": ("i - 2 ^ 1", 2, True),
}


class _Player(base.Player):
    """Asks both, then undoes one of the lies it believes possible."""

    def __init__(self, params: dict, rng: random.Random, lies: list[tuple[int, bool]], noise: float):
        self._colors, self._pair = params["colors"], _PAIRS[params["size"]]
        self._questions = ["color", params["size"]]
        self._rng, self._lies, self._noise = rng, lies, noise
        self._numbers: dict[tuple[str, str], str] = {}
        self._told: list[str] = []

    def act(self, observation: str) -> str:
        for color, size, number in re.findall(r"(\w+) (\w+) (\d)", observation):
            self._numbers[color, size] = number
        if match := re.search(r"says (\w+)", observation):
            self._told.append(match[1])
        if len(self._told) < 2:
            question = self._questions[len(self._told)]
            return base.boxed(f"Ask about the {question}.", question)
        color, size = self._told
        if self._rng.random() < self._noise:
            (color, size), number = self._rng.choice(sorted(self._numbers.items()))
            return base.boxed(f"Perhaps {color} {size} {number}.", number)
        step, swap = self._rng.choice(self._lies)
        if len(self._lies) > 1:
            self._lies.remove((step, swap))
        suspect = self._colors[(self._colors.index(color) - step) % 3], self._pair[self._pair.index(size) ^ swap]
        number = self._numbers[suspect]
        return base.boxed(f"Told {color} {size}, so {suspect[0]} {suspect[1]} {number}.", number)


class Suspects(base.Family):
    name = "suspects"
    skill = "logical deduction"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        return {
            "colors": rng.sample(_COLORS, 3),
            "size": rng.choice(sorted(_PAIRS)),
            "lie": rng.choice(sorted(_HARD_LIES if hard else _LIES)),
            "turns": 5 if hard else rng.randint(4, 5),
        }

    def source(self, params, words):
        c0, c1, c2 = params["colors"]
        s0, s1 = _PAIRS[params["size"]]
        rule = (_LIES | _HARD_LIES)[params["lie"]][0]
        name = base.class_name(words, "Suspects")
        return _TEMPLATE.format(name=name, word=words[1], rule=rule, c0=c0, c1=c1, c2=c2, s0=s0, s1=s1, **params)

    def hint(self, params):
        _, step, swap = (_LIES | _HARD_LIES)[params["lie"]]
        s0, s1 = _PAIRS[params["size"]]
        parts = []
        if step:
            colors = params["colors"]
            parts += [f"{told} means {colors[(i - step) % 3]}" for i, told in enumerate(colors)]
        if swap:
            parts += [f"{s0} means {s1}", f"{s1} means {s0}"]
        return f"Witnesses lie in a fixed way: {', '.join(parts)}."

    def player(self, params, rng, hinted):
        lies = {lie: how[1:] for lie, how in (_LIES | _HARD_LIES).items()}
        if hinted and rng.random() > base.NOISE_HINTED:  # now and then the hint is not read
            return _Player(params, rng, [lies[params["lie"]]], base.NOISE_HINTED)
        return _Player(params, rng, [(0, False), *lies.values()], base.NOISE_PLAIN)


FAMILY = Suspects()
