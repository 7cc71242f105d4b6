"""Open valves in a ring along a chain, where each open valve feeds the next (a causal chain)."""

from __future__ import annotations

import math
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
        start = rng.randint(1, {valves})
        self.chain = [str((start - 1 + {stride} * k) % {valves} + 1) for k in range(1, {length} + 1)]
        self.opened = 0
        dry = rng.choice([k for k in range(1, {valves} + 1) if k != start and str(k) not in self.chain])
        return (
            f"A ring of {word} valves 1 to {valves}, {{dry}} is dry. Valve {{start}} is open and feeds one other, "
            f"and so on. Open {length} more in {{self.max_turns}} turns."
        ), {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if [command] == self.chain[self.opened : self.opened + 1]:
            self.opened += 1
            text = f"Valve {{command}} flows, {{{length} - self.opened}} to go."
        else:
            text = f"That valve is dry, {{{length} - self.opened}} to go."
        won = self.opened == {length}
        done = won or self.turn >= self.max_turns
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.chain

    def close(self):
        pass
"""


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._at, self._stride = 0, params["stride"] if hinted else 0
        self._untried: list[int] = []

    def act(self, observation: str) -> str:
        valves = self._params["valves"]
        if match := re.search(r"Valve (\d+) is open", observation):
            self._at = int(match[1])
            dry = int(re.search(r"(\d+) is dry", observation)[1])
            strides = [k for k in range(1, valves) if (self._at - 1 + k) % valves + 1 != dry]
            self._untried = self._rng.sample(strides, len(strides))
        elif match := re.search(r"Valve (\d+) flows", observation):
            self._stride = self._stride or (int(match[1]) - self._at) % valves
            self._at = int(match[1])
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        if self._rng.random() < noise:
            stride = self._rng.randint(1, valves - 1)
        elif self._stride:
            stride = self._stride
        else:
            stride = self._untried.pop()
        valve = (self._at - 1 + stride) % valves + 1
        return base.boxed(f"Water is at {self._at}, I try {valve}.", valve)


class ValveChain(base.Family):
    name = "valve_chain"
    skill = "causal inference"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        valves = rng.randint(9, 11) if hard else rng.randint(7, 8)
        length = 4 if hard else 3
        return {
            "valves": valves,
            "stride": rng.choice([k for k in range(2, valves - 1) if math.gcd(k, valves) == 1]),
            "length": length,
            "turns": length + 2,
        }

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Pipes"), word=words[1], **params)

    def hint(self, params):
        return f"Each valve feeds the one {params['stride']} further, and after {params['valves']} comes 1 again."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = ValveChain()
