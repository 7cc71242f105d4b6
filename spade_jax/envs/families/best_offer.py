"""Look at a few of many stalls, then take the best price seen (search under a budget)."""

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
        self.seen = {{}}
        price = rng.randint({low}, {high})
        self.prices = {{str(k): price {sign} rng.randint(1, {spread}) for k in range(1, {stalls} + 1)}}
        shown = rng.choice(list(self.prices))
        self.best = {draw}
        text = f"{stalls} {word} stalls, stall {{shown}} costs {{self.prices[shown]}}. look N, then {verb} N at the {goal}."
        self.prices[self.best] = price
        return f"{{text}} {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        verb, _, stall = command.partition(" ")
        won = command == f"{verb} {{self.best}}" and stall in self.seen
        done = won or self.turn >= self.max_turns
        if won:
            text = "The {goal}."
        elif verb == "look" and stall in self.prices:
            self.seen[stall] = self.prices[stall]
            best = {pick}(self.seen, key=self.seen.get)
            text = f"Stall {{stall}} costs {{self.seen[stall]}}, best is {{best}}, {{self.max_turns - self.turn}} left."
        else:
            text = "Not so."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [f"look {{self.best}}", f"{verb} {{self.best}}"]

    def close(self):
        pass
'''

# Where the best stall can be: a fixed few, or just right of the one shown at the start.
_DRAWS = {
    "spots": "rng.choice([k for k in {spots} if k != shown])",
    "right": "str((int(shown) + rng.randrange({reach})) % {stalls} + 1)",
}
_GOALS = {
    "buy": {"sign": "+", "pick": "min", "goal": "cheapest"},
    "sell": {"sign": "-", "pick": "max", "goal": "dearest"},
}


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._best, self._left = "", params["turns"]
        self._unseen: list[str] = []

    def act(self, observation: str) -> str:
        if match := re.search(r"stall (\d+) costs \d+\. look", observation):
            self._unseen = self._candidates(int(match[1]))
        elif match := re.search(r"best is (\d+), (\d+) left", observation):
            self._best, self._left = match[1], int(match[2])
        verb = self._params["verb"]
        slip = self._rng.random() < (base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN)
        if self._best and (self._left <= 1 or not self._unseen or (slip and not self._hinted)):
            return base.boxed(f"Stall {self._best} is the best I saw.", f"{verb} {self._best}")
        if slip:
            stall = str(self._rng.randint(1, self._params["stalls"]))
        else:
            stall = self._unseen.pop(0)
        return base.boxed(f"I have not seen stall {stall}.", f"look {stall}")

    def _candidates(self, shown: int) -> list[str]:
        """The stalls to look at, in order."""
        stalls = self._params["stalls"]
        if self._hinted and self._params["rule"] == "spots":
            return [spot for spot in self._params["spots"] if spot != str(shown)]
        if self._hinted:
            return [str((shown + offset) % stalls + 1) for offset in range(self._params["reach"])]
        others = [str(k) for k in range(1, stalls + 1) if k != shown]
        return self._rng.sample(others, len(others))


class BestOffer(base.Family):
    name = "best_offer"
    skill = "optimization"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        stalls = rng.randint(10, 12) if hard else rng.randint(7, 9)
        reach = 4 if hard else 3
        low = rng.randint(10, 30)
        return {
            "stalls": stalls,
            "reach": reach,
            "spots": tuple(str(k) for k in sorted(rng.sample(range(1, stalls + 1), reach))),
            "rule": rng.choice(("spots", "right")),
            "verb": rng.choice(("buy", "sell")),
            "low": low,
            "high": low + rng.randint(5, 20),
            "spread": rng.randint(5, 9),
            "turns": reach + 2,
        }

    def source(self, params, words):
        draw = _DRAWS[params["rule"]].format(**params)
        goal = _GOALS[params["verb"]]
        return _TEMPLATE.format(name=base.class_name(words, "Market"), word=words[1], draw=draw, **goal, **params)

    def hint(self, params):
        if params["rule"] == "right":
            return f"The best stall is among the {params['reach']} after the shown one, wrapping round. Look at those only."
        return f"The best stall is always one of {', '.join(params['spots'])}. Look at those only."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = BestOffer()
