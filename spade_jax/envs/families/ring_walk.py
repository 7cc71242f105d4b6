"""Walk round a ring in hidden steps, with left and right swapped, and stop on a goal."""

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
        self.spot = rng.randrange({size})
        count = rng.randint({near}, {far})
        way = rng.choice(["left", "right"])
        self.path = [way] * count + ["stop"]
        self.goal = (self.spot + ({step} if way == "left" else -{step}) * count) % {size}
        return f"A {word} walks a ring of spots 0 to {last}. {{self.place()}} Say left, right or stop.", {{}}

    def place(self):
        return f"Now at {{self.spot}}. Goal {{self.goal}}."

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if command == "left":
            self.spot = (self.spot + {step}) % {size}
        elif command == "right":
            self.spot = (self.spot - {step}) % {size}
        won = command == "stop" and self.spot == self.goal
        done = command == "stop" or self.turn >= self.max_turns
        text = "You win." if won else self.place()
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.path

    def close(self):
        pass
'''

_LEARN_PLAIN = 0.9  # how often a plain player remembers which way a move went
_OPPOSITE = {"left": "right", "right": "left"}


class _Player(base.Player):
    def __init__(self, rng: random.Random, hinted: bool):
        self._rng, self._hinted = rng, hinted
        self._up = "left" if hinted else "right"
        self._size, self._spot, self._last = 0, -1, ""

    def act(self, observation: str) -> str:
        if match := re.search(r"spots 0 to (\d+)", observation):
            self._size = int(match[1]) + 1
        match = re.search(r"Now at (\d+). Goal (\d+)", observation)
        if not match:
            return base.boxed("Try.", "right")
        spot, goal = int(match[1]), int(match[2])
        if self._last in _OPPOSITE and not self._hinted and self._rng.random() < _LEARN_PLAIN:
            rose = (spot - self._spot) % self._size <= self._size // 2
            self._up = self._last if rose else _OPPOSITE[self._last]
        self._spot = spot
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        if self._rng.random() < noise:
            self._last = self._rng.choice(("left", "right"))
            return base.boxed("Try a way.", self._last)
        if spot == goal:
            return base.boxed("This is the goal.", "stop")
        up = (goal - spot) % self._size <= self._size // 2
        self._last = self._up if up else _OPPOSITE[self._up]
        return base.boxed(f"The goal is {'up' if up else 'down'} the ring.", self._last)


class RingWalk(base.Family):
    name = "ring_walk"
    skill = "spatial reasoning"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        far = 6 if hard else 5
        step = rng.randint(2, 3)
        # An odd size above twice the longest way, not a multiple of 3: the short way round is the only quick one.
        size = rng.choice((37, 41)) if hard else rng.choice((31, 35))
        return {"size": size, "last": size - 1, "step": step, "near": far - 1, "far": far, "turns": far + 3}

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Ring"), word=words[1], **params)

    def hint(self, params):
        return f"Left raises the spot by {params['step']}, right lowers it. Say stop only on the goal."

    def player(self, params, rng, hinted):
        return _Player(rng, hinted)


FAMILY = RingWalk()
