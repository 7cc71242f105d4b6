"""Pay people; every payment takes a new code."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        names = rng.sample({names}, {items})
        self.debts = dict(zip(names, rng.sample(range({low}, {low} + 30), {items})))
        self.paid = {{}}
        self.codes = rng.sample(range(100, 999), 9)
        for a, b, code in zip(names, names[1:], self.codes):
            n = {value}
            self.ask(f"{text}", lambda a=a, n=n: self.paid.get(a) == n, {read}["{key}"], ["pay", a, n, code])

    def read(self, name: str):
        return self.debts[name]

    def {key}(self):
        return self.codes[0]

    def pay(self, name: str, count: int, code: int):
        if code != self.codes[0]:
            return "wrong code"
        self.codes.pop(0)
        self.paid[name] = count
"""
_READ = ("self.debts[b]", '["read", b], ')
_VARIANTS = {
    "execute": ("Pay {a} {n}.", "rng.randint(2, 99)", ""),
    "read-then-write": ("Pay {a} as much as {b} owes.", *_READ),
    "missing value": ("Pay {a} the debt of {b}.", *_READ),
    "irrelevant request": ("Pay {a} {n}.", "rng.randint(2, 99)", ""),
}


class Bank(base.ToolFamily):
    name = "bank"
    skill = "banking"

    def constants(self, rng, hard):
        return {"low": rng.randint(60, 70) if hard else rng.randint(20, 50), "key": rng.choice(("code", "key", "get"))}

    def source(self, params, words):
        text, value, read = _VARIANTS[params["variant"]]
        turns = params["messages"] * (4 if read else 3) + 2
        values = {**params, "text": text + params["aside"], "value": value, "read": read}
        return base.header(words, "Bank", turns) + _BODY.format(names=base.items(words), **values)

    def hint(self, params):
        read = "Read the debt. " if _VARIANTS[params["variant"]][2] else ""
        return f"{read}A code serves once: call {params['key']} again before each payment."

    def plan(self, params, message, slip, rng):
        words = re.findall(r"\w+", message)
        if params["variant"] in ("read-then-write", "missing value"):
            count = int((yield "How much is it?", "read", {"name": words[5]}))
        else:
            count = int(words[2])
        if slip == base.GUESSES:
            count = base.guess(count, rng)
        # Forgetting is to take any code for good.
        code = rng.randint(100, 999) if slip == base.FORGETS else int((yield "Get a code.", params["key"], {}))
        yield f"Pay {count}.", "pay", {"name": words[1], "count": count, "code": code}


FAMILY = Bank()
