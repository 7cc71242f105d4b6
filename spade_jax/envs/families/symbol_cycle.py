"""Predict the next colour of a row that is walked by hidden jumps."""

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
        self.hits = 0
        self.row = {colours}
        rng.shuffle(self.row)
        spot = rng.randrange({size})
        self.path = []
        for i in range(30):
            self.path.append(self.row[spot % {size}])
            spot += {rule}
        return f"A {word} glows. {{self.shown()}} Name the next, {need} right in {{self.max_turns}} turns.", {{}}

    def shown(self):
        return f"Row: {{' '.join(self.row)}}. Lit: {{' '.join(self.path[self.turn:self.turn + {show}])}}."

    def step(self, action):
        answer = self.path[self.turn + {show}]
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        self.hits += command == answer
        won = self.hits >= {need}
        done = won or self.turn >= self.max_turns
        text = f"{{'Yes' if command == answer else 'No'}}. {{self.shown()}}"
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.path[{show}:{show} + {need}]

    def close(self):
        pass
'''

_COLOURS = ("red", "blue", "green", "gold", "pink", "gray", "white")
_LEARN_PLAIN = 0.75  # how often a plain player copies the jump it saw, else it guesses one


class _Player(base.Player):
    """Knows the jumps when hinted; otherwise copies those it has seen."""

    def __init__(self, jumps: tuple[int, ...], rng: random.Random, hinted: bool):
        self._jumps, self._rng, self._hinted = jumps, rng, hinted
        self._row: list[str] = []
        self._path: list[int] = []

    def act(self, observation: str) -> str:
        match = re.search(r"Row: ([a-z ]+)\. Lit: ([a-z ]+)\.", observation)
        if not match:
            return base.boxed("Guess.", self._rng.choice(_COLOURS))
        self._row = match[1].split()
        size = len(self._row)
        lit = [self._row.index(colour) for colour in match[2].split()]
        self._path += lit if not self._path else lit[-1:]
        seen = [(b - a) % size for a, b in zip(self._path, self._path[1:], strict=False)]
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        period = len(self._jumps)
        if self._rng.random() < noise:
            jump = self._rng.randrange(1, size)
        elif self._hinted:
            jump = self._jumps[len(seen) % period]
        elif len(seen) >= period and self._rng.random() < _LEARN_PLAIN:
            jump = seen[-period]
        else:
            jump = self._rng.randint(1, 3)
        passed = [self._row[(self._path[-1] + i) % size] for i in range(jump + 1)]
        return base.boxed(f"After {passed[0]}: {', '.join(passed[1:])}.", passed[-1])


class SymbolCycle(base.Family):
    name = "symbol_cycle"
    skill = "pattern recognition"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        # Jumps avoid 1 at the start, so that the answers never stand side by side in the row, and no
        # sum of two is a multiple of the size, so that no colour comes back soon enough to repeat it.
        size = rng.choice((5, 7))
        if size == 5:
            jumps = rng.choice([(2,), (3,), (2, 1), (3, 1)])
        else:
            jumps = rng.choice([(2,), (3,), (2, 1), (3, 1), (2, 3), (3, 2)])
        need = 4 if hard else rng.randint(3 if size == 5 else 2, 3)
        return {"size": size, "jumps": jumps, "show": len(jumps), "need": need, "turns": need + 1}

    def source(self, params, words):
        jumps, size = params["jumps"], params["size"]
        rule = str(jumps[0]) if len(jumps) == 1 else f"{jumps}[i % 2]"
        constants = {key: params[key] for key in ("size", "show", "need", "turns")}
        colours = '["' + '", "'.join(_COLOURS[:size]) + '"]'
        return _TEMPLATE.format(
            name=base.class_name(words, "Lights"), word=words[1], rule=rule, colours=colours, **constants
        )

    def hint(self, params):
        jumps = params["jumps"]
        if len(jumps) == 1:
            return f"The next colour is always {jumps[0]} places further along the row, going round."
        return f"The jumps along the row take turns: {jumps[0]} places, then {jumps[1]}, going round."

    def player(self, params, rng, hinted):
        return _Player(params["jumps"], rng, hinted)


FAMILY = SymbolCycle()
