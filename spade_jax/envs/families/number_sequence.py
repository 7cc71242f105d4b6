"""Give the next terms of a number sequence whose steps follow a hidden rule."""

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
        self.terms = [rng.randint(1, 15)]
        for i in range(30):
            self.terms.append(self.terms[-1] + {rule})
        return f"A {word} counts: {{self.shown()}}. Name the next, {need} right in {{self.max_turns}} turns.", {{}}

    def shown(self):
        return " ".join(str(term) for term in self.terms[:self.turn + {show}])

    def step(self, action):
        answer = str(self.terms[self.turn + {show}])
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        self.hits += command == answer
        won = self.hits >= {need}
        done = won or self.turn >= self.max_turns
        text = f"{{'Yes' if command == answer else 'No'}}: {{self.shown()}}. Next?"
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [str(term) for term in self.terms[{show}:{show} + {need}]]

    def close(self):
        pass
'''

_REPEAT_PLAIN = 0.3  # how often a plain player repeats the last step, else it looks at the last two or three


class _Player(base.Player):
    """Knows the steps by index when hinted; otherwise takes a step it has seen."""

    def __init__(self, steps: list[int], rng: random.Random, hinted: bool):
        self._steps, self._rng, self._hinted = steps, rng, hinted

    def act(self, observation: str) -> str:
        match = re.search(r": ((?:\d+ ?)+)\.", observation)
        terms = [int(term) for term in match[1].split()] if match else [0, 1, 2]
        seen = [b - a for a, b in zip(terms, terms[1:], strict=False)]
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        if self._rng.random() < noise:
            step = self._rng.randint(1, 6)
        elif self._hinted:
            step = self._steps[len(seen)]
        elif self._rng.random() < _REPEAT_PLAIN:
            step = seen[-1]
        elif len(seen) > 2:
            step = seen[-2] if seen[-1] == seen[-3] else 2 * seen[-1] - seen[-2]
        else:
            step = self._rng.choice((seen[-2], 2 * seen[-1] - seen[-2]))
        last = terms[-1]
        return base.boxed(f"Last step {seen[-1]}. {last} + {step} = {last + step}.", last + step)


def _steps(params) -> list[int]:
    cycle, grow = params["cycle"], params["grow"]
    return [cycle[0] + grow * i if grow else cycle[i % len(cycle)] for i in range(30)]


class NumberSequence(base.Family):
    name = "number_sequence"
    skill = "pattern recognition"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        grow = rng.choice((0, 0, 1))
        cycle = [rng.randint(1, 3)] if grow else rng.sample(range(1, 7), 2)
        need, turns = rng.choice(((4, 6), (5, 7))) if hard else rng.choice(((2, 3), (2, 4), (3, 5)))
        return {"cycle": cycle, "grow": grow, "show": 3, "need": need, "turns": turns}

    def source(self, params, words):
        first = params["cycle"][0]
        rule = f"{first} + i" if params["grow"] else f"({first}, {params['cycle'][1]})[i % 2]"
        constants = {key: params[key] for key in ("show", "need", "turns")}
        return _TEMPLATE.format(name=base.class_name(words, "Count"), word=words[1], rule=rule, **constants)

    def hint(self, params):
        if params["grow"]:
            return "Each step is 1 bigger than the step before it."
        return f"The steps take turns: add {params['cycle'][0]}, then add {params['cycle'][1]}."

    def player(self, params, rng, hinted):
        return _Player(_steps(params), rng, hinted)


FAMILY = NumberSequence()
