"""Look at a few of many stalls, then take the best price seen (search under a budget)."""

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
        self.seen = []
        self.best = rng.choice("{spots}")
        price = rng.randint({low}, {high})
        self.prices = {{k: price {sign} (k != self.best) * rng.randint(1, {spread}) for k in "{labels}"}}
        shown = rng.choice("{others}")
        return f"{word} stalls {labels}, {{shown}} costs {{self.prices[shown]}}. look K, then {verb} K at \
the {goal}. {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        stall = command[-1:]
        won = command == f"{verb} {{self.best}}" and stall in self.seen
        done = won or self.turn >= self.max_turns
        if won:
            text = "The {goal}."
        elif command == f"look {{stall}}" and stall in self.prices:
            self.seen.append(stall)
            text = f"{{stall}} costs {{self.prices[stall]}}."
        else:
            text = "Not so."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [f"look {{self.best}}", f"{verb} {{self.best}}"]

    def close(self):
        pass
"""

_GOALS = {
    "buy": {"sign": "+", "goal": "cheapest"},
    "sell": {"sign": "-", "goal": "dearest"},
}


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._turns, self._best, self._price = 0, "", 0
        self._unseen: list[str] = []

    def act(self, observation: str) -> str:
        self._turns += 1
        if match := re.search(r"(\w) costs \d+\. look", observation):
            others = [label for label in self._params["labels"] if label != match[1]]
            self._unseen = list(self._params["spots"]) if self._hinted else self._rng.sample(others, len(others))
        elif match := re.search(r"(\w) costs (\d+)", observation):
            price = int(match[2]) * (1 if self._params["verb"] == "buy" else -1)
            if not self._best or price < self._price:
                self._best, self._price = match[1], price
        verb, best = self._params["verb"], self._best
        slip = self._rng.random() < (base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN)
        last = self._turns == self._params["turns"] or not self._unseen
        if best and (last or (slip and not self._hinted)):
            return base.boxed(f"Best is {best} at {abs(self._price)}.", f"{verb} {best}")
        stall = self._rng.choice(self._params["labels"]) if slip else self._unseen.pop(0)
        reason = f"Best is {best} at {abs(self._price)}, now {stall}." if best else f"I start with {stall}."
        return base.boxed(reason, f"look {stall}")


class BestOffer(base.Family):
    name = "best_offer"
    skill = "optimization"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        stalls = rng.randint(10, 11) if hard else rng.randint(7, 9)
        reach = 4 if hard else 3
        labels = "ABCDEFGHIJK"[:stalls] if hard or rng.random() < 0.5 else "123456789"[:stalls]
        spots = "".join(sorted(rng.sample(labels, reach)))
        low = rng.randint(10, 30)
        return {
            "labels": labels,
            "spots": spots,
            "others": "".join(label for label in labels if label not in spots),
            "verb": rng.choice(sorted(_GOALS)),
            "low": low,
            "high": low + rng.randint(5, 20),
            "spread": rng.randint(5, 9),
            "turns": reach + 2,
        }

    def source(self, params, words):
        goal = _GOALS[params["verb"]]
        return _TEMPLATE.format(name=base.class_name(words, "Market"), word=words[1].capitalize(), **goal, **params)

    def hint(self, params):
        goal = _GOALS[params["verb"]]["goal"]
        return f"The {goal} stall is always one of {', '.join(params['spots'])}. Look at those only."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = BestOffer()
