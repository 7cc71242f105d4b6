"""Lend books that are out; they have to come back first."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        names = rng.sample({names}, {items})
        self.out = dict(zip(names, rng.sample(range({low}, {low} + 30), {items})))
        self.lent = {{}}
        self.home = []
        for a, b in zip(names, names[1:]):
            n = {value}
            self.ask(f"{text}", lambda a=a, n=n: self.lent.get(a) == n, {read}["{back}", a], ["lend", a, n])

    def days(self, book: str):
        return self.out[book]

    def {back}(self, book: str):
        self.home.append(book)

    def lend(self, book: str, days: int):
        if book not in self.home:
            return "out"
        self.lent[book] = days
"""
_READ = ("self.out[b]", '["days", b], ')
_VARIANTS = {
    "execute": ("Lend {a} for {n} days.", "rng.randint(2, 60)", ""),
    "read-then-write": ("Lend {a} as long as {b}.", *_READ),
    "missing value": ("Lend {a} as usual, see {b}.", *_READ),
    "irrelevant request": ("Lend {a} for {n} days.", "rng.randint(2, 60)", ""),
}


class Library(base.ToolFamily):
    name = "library"
    skill = "library"
    held_out = True

    def constants(self, rng, hard):
        return {"low": rng.randint(60, 70) if hard else rng.randint(10, 50), "back": rng.choice(("back", "take"))}

    def source(self, params, words):
        text, value, read = _VARIANTS[params["variant"]]
        turns = params["messages"] * (4 if read else 3) + 2
        values = {**params, "text": text + params["aside"], "value": value, "read": read}
        return base.header(words, "Books", turns) + _BODY.format(names=base.items(words), **values)

    def hint(self, params):
        read = "Ask for the days. " if _VARIANTS[params["variant"]][2] else ""
        return f"{read}Every book is out: {params['back']} it before you lend it."

    def plan(self, params, message, slip, rng):
        words = re.findall(r"\w+", message)
        if params["variant"] in ("read-then-write", "missing value"):
            days = int((yield "How many days?", "days", {"book": words[5]}))
        else:
            days = int(words[3])
        if slip == base.GUESSES:
            days = base.guess(days, rng)
        if slip != base.FORGETS:
            yield "It is out.", params["back"], {"book": words[1]}
        yield f"Lend it for {days}.", "lend", {"book": words[1], "days": days}


FAMILY = Library()
