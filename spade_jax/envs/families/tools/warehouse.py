"""Set counts in a stock list; a change is a draft until it is kept."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        names = rng.sample({names}, {items})
        self.stock = dict(zip(names, rng.sample(range(2, {top}), {items})))
        self.draft = {{}}
        for a, b in zip(names, names[1:]):
            n = {value}
            self.ask(f"{text}", lambda a=a, n=n: self.stock[a] == n, {read}["put", a, n], ["{keep}"])

    def read(self, item: str):
        return self.stock[item]

    def put(self, item: str, count: int):
        self.draft = {{item: count}}
        return "draft"

    def {keep}(self):
        self.stock.update(self.draft)

    def {lose}(self):
        self.draft = {{}}
        return "gone"
"""
_READ = ("Put as many {a} as {b}.", "self.stock[b]", '["read", b], ')
_VARIANTS = {
    "execute": ("Put {n} {a}.", "rng.randint({top}, 99)", ""),
    "read-then-write": _READ,
    "missing value": ("Put {a} as usual, see {b}.", *_READ[1:]),
    "irrelevant request": ("Put {n} {a}.", "rng.randint({top}, 99)", ""),
}
_PAIRS = (("save", "clear"), ("clear", "save"), ("send", "drop"), ("drop", "send"))


class Warehouse(base.ToolFamily):
    name = "warehouse"
    skill = "inventory"

    def constants(self, rng, hard):
        keep, lose = rng.choice(_PAIRS)
        return {"top": rng.randint(50, 70) if hard else rng.randint(20, 40), "keep": keep, "lose": lose}

    def source(self, params, words):
        text, value, read = _VARIANTS[params["variant"]]
        values = {**params, "text": text + params["aside"], "value": value.format(**params), "read": read}
        turns = params["messages"] * (4 if read else 3) + 2
        return base.header(words, "Stock", turns) + _BODY.format(names=base.items(words), **values)

    def hint(self, params):
        first = "Read the named item, put that count" if "read" in _VARIANTS[params["variant"]][2] else "Put the count"
        return f"{first}, then {params['keep']} it before you answer; {params['lose']} loses it."

    def plan(self, params, message, slip, rng):
        words = re.findall(r"\w+", message)
        if params["variant"] in ("execute", "irrelevant request"):
            item, count = words[2], int(words[1])
        else:
            item, other = (words[3], words[5]) if message.startswith("Put as many") else (words[1], words[5])
            count = int((yield "How many are there?", "read", {"item": other}))
        if slip == base.GUESSES:
            count = base.guess(count, rng)
        yield f"Put {count}.", "put", {"item": item, "count": count}
        if slip != base.FORGETS:
            yield "Keep the draft.", params["keep"], {}


FAMILY = Warehouse()
