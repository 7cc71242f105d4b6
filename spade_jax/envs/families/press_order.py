"""Press labelled buttons in a hidden order (the order is the law to find)."""

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
        self.count = 0
        labels = self.order = []
        while self.order in (labels, labels[::-1]):
            labels = rng.sample("{labels}", {size})
            self.order = {order}
        return (
            f"The {word} has buttons {{', '.join(labels)}}. "
            f"Press all in the right order, one a turn, in {{self.max_turns}} turns."
        ), {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        if [command] == self.order[self.count : self.count + 1]:
            self.count += 1
            text = f"Button {{command}} is right, {{self.count}} done."
        else:
            self.count = {back}
            text = f"Wrong, {{self.count}} done."
        won = self.count == {size}
        done = won or self.turn >= self.max_turns
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return self.order

    def close(self):
        pass
"""

# The order of the buttons: (expression in the program, wording of the hint).
_ORDERS = {
    "rising": ("sorted(labels)", "from the lowest to the highest"),
    "falling": ("sorted(labels, reverse=True)", "from the highest to the lowest"),
    "second": ("labels[1::2] + labels[::2]", "every second one from the left, then the rest from the left"),
}
# What a wrong press costs beside the turn: nothing, or one step back.
_BACKS = {
    "keep": "self.count",
    "step": "max(0, self.count - 1)",
}


def _arranged(labels: list[str], order: str) -> list[str]:
    if order == "second":
        return labels[1::2] + labels[::2]
    return sorted(labels, reverse=order == "falling")


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._labels: list[str] = []
        self._known: list[str] = []
        self._wrong: set[str] = set()
        self._count, self._last = 0, ""
        self._order = params["order"] if hinted else rng.choice(sorted(_ORDERS))

    def act(self, observation: str) -> str:
        if match := re.search(r"buttons ([\w, ]+)\. ", observation):
            self._labels = match[1].split(", ")
        elif match := re.search(r"(\d) done", observation):
            self._learn("right" in observation, int(match[1]))
        noise = base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN
        guess = _arranged(self._labels, self._order)[self._count]
        if self._rng.random() < noise:
            label = self._rng.choice(self._labels)
        elif self._count < len(self._known):
            label = self._known[self._count]
        elif guess in self._wrong:
            label = self._rng.choice([k for k in self._labels if k not in self._wrong and k not in self._known])
        else:
            label = guess
        self._last = label
        return base.boxed(f"{self._count} done, {label} comes next.", label)

    def _learn(self, right: bool, count: int) -> None:
        """Remembers the buttons found in order, and those that are not the next one."""
        if right and count > len(self._known):
            self._known.append(self._last)
            self._wrong = set()
        elif not right and self._count == len(self._known):
            self._wrong.add(self._last)
        self._count = count


class PressOrder(base.Family):
    name = "press_order"
    skill = "causal inference"

    def parameters(self, rng, split):
        size = 5 if split == base.HELD_OUT else 4
        first = rng.randint(0, 3)
        order = rng.choice(sorted(_ORDERS))
        return {
            "labels": rng.choice(("123456789", "ABCDEFGHIJKL"))[first : first + rng.randint(6, 8)],
            "size": size,
            "order": order,
            "back": rng.choice(sorted(_BACKS)),
            "turns": size + (3 if size == 5 else rng.randint(2, 3)),
        }

    def source(self, params, words):
        fields = {**params, "order": _ORDERS[params["order"]][0], "back": _BACKS[params["back"]]}
        return _TEMPLATE.format(name=base.class_name(words, "Panel"), word=words[1], **fields)

    def hint(self, params):
        return f"The order is {_ORDERS[params['order']][1]}. Each button is pressed once."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = PressOrder()
