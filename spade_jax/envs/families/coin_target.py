"""Pay a total exactly with few coins, where some coins only lead astray (making change)."""

from __future__ import annotations

import functools
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
        self.plan = ["{big}"] * rng.randint(2, {many}) + ["{small}"] * rng.randint(1, {few})
        self.left = sum(map(int, self.plan))
        coins = ", ".join(rng.sample({coins}, {kinds}))
        return f"Pay {{self.left}} for the {word} with coins {{coins}}, one a turn, in {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if command in {coins}:
            self.left -= int(command)
            text = f"Paid {{command}}, {{self.left}} left."
        else:
            text = f"No such coin, {{self.left}} left."
        won = self.left == 0
        done = won or self.turn >= self.max_turns
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.plan

    def close(self):
        pass
"""


_MANY, _FEW = 4, 2  # at most so many big and small coins
_TURNS = _MANY + _FEW


def _fair(coins: list[int]) -> bool:
    """Whether paying the biggest coin that fits, or one coin only, seldom reaches the total."""
    big, small = coins[:2]
    totals = [big * a + small * b for a in range(2, _MANY + 1) for b in range(1, _FEW + 1)]
    greedy = 0
    for left in totals:
        for _ in range(_TURNS):
            left -= max((coin for coin in coins if coin <= left), default=0)
        greedy += left == 0

    @functools.cache
    def lucky(left: int, turns: int = _TURNS) -> float:
        """The chance that coins drawn at random pay `left`."""
        if left == 0 or turns == 0:
            return float(left == 0)
        return sum(lucky(left - coin, turns - 1) for coin in coins if coin <= left) / len(coins)

    repeats = max(sum(total % coin == 0 and total <= coin * _TURNS for total in totals) for coin in coins)
    return 2 <= greedy <= 4 and repeats == 0 and sum(map(lucky, totals)) < 0.08 * len(totals)


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        coins = [params["small"], params["big"]] if hinted else [int(coin) for coin in params["coins"]]
        self._coins, self._params, self._rng, self._hinted = coins, params, rng, hinted
        self._left = 0

    def act(self, observation: str) -> str:
        if match := re.search(r"(?:Pay (\d+) for|(-?\d+) left)", observation):
            self._left = int(match[1] or match[2])
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        fitting = [coin for coin in self._coins if coin <= self._left]
        slip = self._rng.random() < noise or not fitting
        coin = self._rng.choice(self._coins) if slip else max(fitting)
        return base.boxed(f"{self._left} left, {coin} comes next.", coin)


class CoinTarget(base.Family):
    name = "coin_target"
    skill = "optimization"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        while True:
            big = rng.randint(15, 20) if hard else rng.randint(8, 14)
            small = rng.randint(2, (big - 1) // _FEW)
            traps = rng.sample([coin for coin in range(2, big + 5) if coin not in (big, small)], 3)
            coins = [big, small, *traps]
            if _fair(coins):
                break
        return {
            "big": big,
            "small": small,
            "coins": tuple(str(coin) for coin in sorted(coins)),
            "kinds": len(coins),
            "many": _MANY,
            "few": _FEW,
            "turns": _TURNS,
        }

    def source(self, params, words):
        return _TEMPLATE.format(name=base.class_name(words, "Toll"), word=words[1], **params)

    def hint(self, params):
        big, small = params["big"], params["small"]
        return f"Use only {big} and {small}: pay {big} while it fits, then {small}."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = CoinTarget()
