"""Find which switch drives a lamp by flipping switches and watching (a controlled experiment)."""

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
        self.flipped = []
        self.driver = rng.choice("{spots}")
        dead = rng.sample("{others}", 2)
        return (
            f"One switch of {labels} drives the {word}, not {{dead[0]}} or {{dead[1]}}. "
            f"flip K to test, then say K. {{self.max_turns}} turns."
        ), {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        verb, _, switch = command.partition(" ")
        won = command == f"say {{self.driver}}" and switch in self.flipped
        done = won or self.turn >= self.max_turns
        if won:
            text = "Correct."
        elif verb == "flip" and switch in "{labels}":
            self.flipped.append(switch)
            text = "It changes." if {lit} else "It stays."
        else:
            text = "Not so."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return [f"flip {{self.driver}}", f"say {{self.driver}}"]

    def close(self):
        pass
"""

# How the lamp shows the driver: at once, or one flip late.
_LIT = {
    "now": "switch == self.driver",
    "late": "self.driver in self.flipped[-2:-1]",
}


class _Player(base.Player):
    def __init__(self, params, rng: random.Random, hinted: bool):
        self._params, self._rng, self._hinted = params, rng, hinted
        self._untried: list[str] = []
        self._flips: list[str] = []

    def act(self, observation: str) -> str:
        if match := re.search(r"not (\w) or (\w)\.", observation):
            labels = [label for label in self._params["labels"] if label not in match.groups()]
            self._untried = list(self._params["spots"]) if self._hinted else self._rng.sample(labels, len(labels))
        late = self._hinted and self._params["lit"] == "late"
        if "changes" in observation and len(self._flips) > late:
            driver = self._flips[-2] if late else self._flips[-1]
            return base.boxed(f"It answers to {driver}.", f"say {driver}")
        slip = self._rng.random() < (base.NOISE_HINTED if self._hinted else base.NOISE_PLAIN)
        stray = slip or not self._untried
        switch = self._rng.choice(self._params["labels"]) if stray else self._untried.pop(0)
        self._flips.append(switch)
        return base.boxed(f"I try {switch} next.", f"flip {switch}")


class SwitchLamp(base.Family):
    name = "switch_lamp"
    skill = "causal inference"

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        switches = rng.randint(10, 11) if hard else rng.randint(7, 9)
        reach = 4 if hard else 3
        labels = "ABCDEFGHIJK"[:switches] if hard or rng.random() < 0.5 else "123456789"[:switches]
        spots = "".join(sorted(rng.sample(labels, reach)))
        lit = rng.choice(sorted(_LIT))
        return {
            "labels": labels,
            "spots": spots,
            "others": "".join(label for label in labels if label not in spots),
            "lit": lit,
            "turns": reach + (3 if lit == "late" else 2),
        }

    def source(self, params, words):
        fields = {**params, "lit": _LIT[params["lit"]]}
        return _TEMPLATE.format(name=base.class_name(words, "Lamp"), word=words[1], **fields)

    def hint(self, params):
        when = "one flip late" if params["lit"] == "late" else "at once"
        return f"Only {', '.join(params['spots'])} can drive it, and it changes {when}. Flip those only."

    def player(self, params, rng, hinted):
        return _Player(params, rng, hinted)


FAMILY = SwitchLamp()
