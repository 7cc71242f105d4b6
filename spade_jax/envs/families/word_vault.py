"""Spell a vault's word letter by letter; a hidden rule ties the letters; never warm-started."""

from __future__ import annotations

from spade_jax.envs.families import base
from spade_jax.envs.families.code_lock import ChainPlayer, Rule

_TEMPLATE = '''\
import random


class {name}:
    def __init__(self, max_turns={turns}, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.known = 1
        letters = "{alphabet}"
        place = rng.randint(0, 9)
        self.word = letters[place]
        for i in range(1, {size}):
            place = ({rule}) % 10
            self.word += letters[place]
        text = f"A {word} vault wants {size} of {{letters}} in {{self.max_turns}} turns."
        return f"{{text}} Letter 1 is {{self.word[0]}}.", {{}}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\\\boxed{{", "").replace("}}", "").strip()
        letter = self.word[self.known]
        won = command == letter and self.known == {size} - 1
        done = won or self.turn >= self.max_turns
        if won:
            text = "Open."
        elif command == letter:
            self.known += 1
            text = f"Letter {{self.known}} is {{letter}}."
        else:
            text = "Too low." if command < letter else "Too high."
        return text, float(won), done, False, {{"success": won}}

    def solution(self):
        return list(self.word[1:])

    def close(self):
        pass
'''


def _back(k: int) -> Rule:
    hint = f"Each letter stands {k} places before the last one in the alphabet; before the first comes the end."
    return Rule(f"place - {k}", hint, lambda last, i: -k)


def _in_turn(j: int, k: int) -> Rule:
    hint = f"Go {j} places on, then {k} places on, in turn; after the end comes the start."
    return Rule(f"place + ({j} if i % 2 else {k})", hint, lambda last, i: j if i % 2 else k)


_RULES = {
    **{f"back {k}": _back(k) for k in range(2, 10)},
    **{f"turn {j} {k}": _in_turn(j, k) for j in range(2, 6) for k in range(2, 6) if j != k},
}
_ALPHABETS = ("abcdefghij", "klmnopqrst", "pqrstuvwxy", "fghijklmno")


class WordVault(base.Family):
    name = "word_vault"
    skill = "logical deduction"
    held_out = True

    def parameters(self, rng, split):
        hard = split == base.HELD_OUT
        kind = rng.choice(("back", "turn"))
        return {
            "rule": rng.choice([name for name in _RULES if name.startswith(kind)]),
            "alphabet": rng.choice(_ALPHABETS),
            "size": 5 if hard else 4,
            "turns": 7 if hard else rng.randint(5, 6),
        }

    def source(self, params, words):
        values = {**params, "rule": _RULES[params["rule"]].expression}
        return _TEMPLATE.format(name=base.class_name(words, "Vault"), word=words[1], **values)

    def hint(self, params):
        return _RULES[params["rule"]].hint

    def player(self, params, rng, hinted):
        if hinted and rng.random() > base.NOISE_HINTED:  # now and then the hint is not read
            return ChainPlayer(rng, params["alphabet"], [_RULES[params["rule"]]], base.NOISE_HINTED)
        return ChainPlayer(rng, params["alphabet"], list(_RULES.values()), base.NOISE_PLAIN)


FAMILY = WordVault()
