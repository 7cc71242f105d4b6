"""Pay a total exactly with few coins, where some coins only lead astray (making change)."""

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
        self.plan = ["{big}"] * rng.randint(2, {many}) + ["{small}"] * rng.randint(1, {few})
        self.left = sum(map(int, self.plan))
        coins = ", ".join(rng.sample({coins}, {kinds}))
        return f"Pay {{self.left}} for the {word} with coins {{coins}}, one a turn, in {{self.max_turns}} turns.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if command not in {coins}:
            text = "No such coin."
        elif int(command) > self.left:
            text = f"Too much, {{self.left}} left."
        else:
            self.left -= int(command)
            text = f"Paid {{command}}, {{self.left}} left."
        won = self.left == 0
        done = won or self.turn >= self.max_turns
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.plan

    def close(self):
        pass
'''


_MANY, _FEW = 4, 3  # at most so many big and small coins
_TURNS = _MANY + _FEW + 1


def _fair(coins: list[int]) -> bool:
    """Whether paying the biggest coin that fits, or one coin only, seldom reaches the total."""
    big, small = coins[:2]
    totals = [big * a + small * b for a in range(2, _MANY + 1) for b in range(1, _FEW + 1)]
    greedy = 0
    for left in totals:
        for _ in range(_TURNS):
            left -= max((coin for coin in coins if coin <= left), default=0)
        greedy += left == 0
    repeats = max(sum(total % coin == 0 and total <= coin * _TURNS for total in totals) for coin in coins)
    return 3 <= greedy <= 6 and repeats == 0


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        coins = [params["small"], params["big"]] if hinted else [int(coin) for coin in params["coins"]]
        self._coins, self._params, self._rng, self._hinted = coins, params, rng, hinted
        self._left = 0

    def act(self, observation: str) -> str:
        if match := re.search(r"(?:Pay (\d+) for|(\d+) left)", observation):
            self._left = int(match[1] or match[2])
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        fitting = [coin for coin in self._coins if coin <= self._left]
        if self._rng.random() < noise or not fitting:
            coin = self._rng.choice(self._coins)
        else:
            coin = max(fitting)
        return base.boxed(f"{self._left} left, {coin} comes next.", coin)


class CoinTarget(base.Family):
    name = "coin_target"
    skill = "optimization"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        while True:
            big = rng.randint(13, 19) if hard else rng.randint(7, 12)
            small = rng.randint(2, (big - 1) // 3)
            traps = rng.sample([coin for coin in range(2, big + 5) if coin not in (big, small)], 3 if hard else 2)
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
        return f"Use only {params['big']} and {params['small']}: pay {params['big']} while it fits, then {params['small']}."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = CoinTarget()
