"""Give the next letters of an alphabet walk whose steps follow a hidden rule."""

from __future__ import annotations

import random
import re

from spade_jax.envs.families import base

_TEMPLATE = '''\
import random

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.hits = 0
        spot = rng.randrange(26)
        self.path = []
        for i in range(30):
            self.path.append(LETTERS[spot % 26])
            spot += {rule}
        return f"A {word} writes: {{self.shown()}}. Name the next, {need} right in {{self.max_turns}} turns.", {{}}

    def shown(self):
        return " ".join(self.path[:self.turn + 3])

    def step(self, action):
        answer = self.path[self.turn + 3]
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        self.hits += command == answer
        won = self.hits >= {need}
        done = won or self.turn >= self.max_turns
        text = f"{{'Yes' if command == answer else 'No'}}: {{self.shown()}}. Next?"
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.path[3:3 + {need}]

    def close(self):
        pass
'''

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_REPEAT_PLAIN = 0.45  # how often a plain player repeats the last step, else it takes the one before


class _Player(base.Player):
    """Knows the steps by index when hinted; otherwise takes a step it has seen."""

    def __init__(self, steps: tuple[int, ...], rng: random.Random, hinted: bool):
        self._steps, self._rng, self._hinted = steps, rng, hinted

    def act(self, observation: str) -> str:
        match = re.search(r": ((?:[a-z] ?)+)\.", observation)
        spots = [_LETTERS.index(letter) for letter in match[1].split()] if match else [0, 1, 2]
        seen = [(b - a) % 26 for a, b in zip(spots, spots[1:], strict=False)]
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        if self._rng.random() < noise:
            step = self._rng.randint(1, 4)
        elif self._hinted:
            step = self._steps[len(seen) % len(self._steps)]
        elif self._rng.random() < _REPEAT_PLAIN:
            step = seen[-1]
        else:
            step = seen[-2]
        passed = [_LETTERS[(spots[-1] + i) % 26] for i in range(step + 1)]
        return base.boxed(f"After {passed[0]}: {', '.join(passed[1:])}.", passed[-1])


class LetterSequence(base.Family):
    name = "letter_sequence"
    skill = "pattern recognition"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        need, turns = rng.choice(((4, 7), (5, 8))) if hard else rng.choice(((2, 3), (2, 4), (3, 5)))
        return {"steps": tuple(rng.sample(range(1, 5), 2)), "need": need, "turns": turns}

    def source(self, params, words):
        return _TEMPLATE.format(
            name=base.class_name(words, "Letters"),
            word=words[1],
            rule=f"{params['steps']}[i % 2]",
            need=params["need"],
            turns=params["turns"],
        )

    def hint(self, params):
        first, second = params["steps"]
        return f"The steps along the alphabet take turns: {first} on, then {second} on."

    def player(self, params, rng, hinted):
        return _Player(params["steps"], rng, hinted)


FAMILY = LetterSequence()
