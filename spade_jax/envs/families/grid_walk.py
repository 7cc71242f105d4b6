"""Walk on a grid to a goal, and stop there, although the four controls are mirrored or turned."""

from __future__ import annotations

import random
import re

from spade_jax.envs.families import base

_TEMPLATE = '''\
import random

MOVES = {{{moves}}}


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.spot = [rng.randint(10, 20), rng.randint(10, 20)]
        count = rng.randint(1, {longest})
        self.path = [rng.choice("ns")] * count + [rng.choice("ew")] * ({far} - count)
        self.goal = [self.spot[i] + sum(MOVES[way][i] for way in self.path) for i in (0, 1)]
        return f"A {word} walks. {{self.place()}} Say n, s, e, w, or stop at the goal.", {{}}

    def place(self):
        return f"Now x {{self.spot[0]}}, y {{self.spot[1]}}. Goal x {{self.goal[0]}}, y {{self.goal[1]}}."

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        for i in (0, 1):
            self.spot[i] += MOVES.get(command, (0, 0))[i]
        won = command == "stop" and self.spot == self.goal
        done = command == "stop" or self.turn >= self.max_turns
        text = "You win." if won else self.place()
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.path + ["stop"]

    def close(self):
        pass
'''

_WAYS = ("n", "s", "e", "w")
_USUAL = {"n": (0, 1), "s": (0, -1), "e": (1, 0), "w": (-1, 0)}
_LEARN_PLAIN = 0.9  # how often a plain player learns from what a move did


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


def _twists() -> list[dict[str, tuple[int, int]]]:
    """The seven ways to mirror or turn the usual controls."""
    axes = ((0, 1), (0, -1), (1, 0), (-1, 0))
    maps = []
    for north in axes:
        for east in axes:
            if bool(north[0]) != bool(east[0]):
                moves = {"n": north, "s": (-north[0], -north[1]), "e": east, "w": (-east[0], -east[1])}
                maps.append(moves)
    return [moves for moves in maps if moves != _USUAL]


class _Player(base.Player):
    def __init__(self, moves: dict[str, tuple[int, int]], rng: random.Random, hinted: bool):
        self._rng, self._hinted = rng, hinted
        self._moves = moves if hinted else _USUAL
        self._possible = _twists()
        self._place: tuple[int, int] | None = None
        self._last = ""

    def act(self, observation: str) -> str:
        match = re.search(r"Now x (-?\d+), y (-?\d+). Goal x (-?\d+), y (-?\d+)", observation)
        if not match:
            return base.boxed("Try a way.", self._rng.choice(_WAYS))
        x, y, goal_x, goal_y = map(int, match.groups())
        if self._place and not self._hinted and self._rng.random() < _LEARN_PLAIN:
            moved = (_sign(x - self._place[0]), _sign(y - self._place[1]))
            self._possible = [twist for twist in self._possible if twist[self._last] == moved]
            if self._moves not in self._possible:
                self._moves = self._rng.choice(self._possible)
        self._place = (x, y)
        need_x, need_y = _sign(goal_x - x), _sign(goal_y - y)
        wanted = (need_x, 0) if need_x else (0, need_y)
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        sure = self._rng.random() > noise
        if wanted == (0, 0) and sure:
            return base.boxed("This is the goal.", "stop")
        fitting = [way for way in _WAYS if self._moves[way] == wanted]
        self._last = self._rng.choice(fitting if fitting and sure else _WAYS)
        if wanted == (0, 0):
            return base.boxed("Try a way.", self._last)
        verb = "raise" if sum(wanted) > 0 else "lower"
        return base.boxed(f"Need to {verb} {'x' if need_x else 'y'}.", self._last)


class GridWalk(base.Family):
    name = "grid_walk"
    skill = "spatial reasoning"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        stretch_x, stretch_y = rng.choice([(1, 1), (2, 1), (1, 2)])
        twist = rng.choice(_twists())
        moves = {way: (twist[way][0] * stretch_x, twist[way][1] * stretch_y) for way in _WAYS}
        far = 5 if hard else rng.randint(3, 4)
        return {"moves": moves, "far": far, "longest": far - 1, "turns": far + 3}

    def source(self, params, words):
        moves = ", ".join(f'"{way}": {move}' for way, move in params["moves"].items())
        return _TEMPLATE.format(name=base.class_name(words, "Walk"), word=words[1], **params | {"moves": moves})

    def hint(self, params):
        parts = []
        for way in _WAYS:
            x, y = params["moves"][way]
            parts.append(f"{way} {'raises' if x + y > 0 else 'lowers'} {'x' if x else 'y'}")
        return "The controls are odd: " + ", ".join(parts) + "."

    def player(self, params, rng, hinted):
        moves = {way: (_sign(x), _sign(y)) for way, (x, y) in params["moves"].items()}
        return _Player(moves, rng, hinted)


FAMILY = GridWalk()
