"""Book hours of a week whose days are full; a day has to be freed first."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        days = rng.sample(["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"], {items})
        self.hours = dict(zip(days, rng.sample(range({low}, {low} + 9), {items})))
        self.book = {{}}
        self.open = []
        for a, b in zip(days, days[1:]):
            n = {value}
            self.ask(f"{text}", lambda a=a, n=n: self.book.get(a) == n, {read}["{free}", a], ["put", a, n])

    def read(self, day: str):
        return self.hours[day]

    def {free}(self, day: str):
        self.open.append(day)

    def put(self, day: str, hour: int):
        if day not in self.open:
            return "full"
        self.book[day] = hour
"""
_READ = ("self.hours[b]", '["read", b], ')
_VARIANTS = {
    "execute": ("Put {word} on {{a}} at {{n}}.", "rng.randint({low}, {low} + 9)", ""),
    "read-then-write": ("Put {word} on {{a}} at the hour of {{b}}.", *_READ),
    "missing value": ("Put {word} on {{a}}, same time as {{b}}.", *_READ),
    "irrelevant request": ("Put {word} on {{a}} at {{n}}.", "rng.randint({low}, {low} + 9)", ""),
}


class Calendar(base.ToolFamily):
    name = "calendar"
    skill = "calendar"

    def constants(self, rng, hard):
        return {
            "low": rng.randint(11, 13) if hard else rng.randint(5, 9),
            "free": rng.choice(("drop", "clear", "free")),
        }

    def source(self, params, words):
        text, value, read = _VARIANTS[params["variant"]]
        text = text.format(word=words[1]) + params["aside"]
        values = {**params, "text": text, "value": value.format(**params), "read": read}
        return base.header(words, "Week", params["messages"] * (4 if read else 3) + 2) + _BODY.format(**values)

    def hint(self, params):
        read = "Read the hour of the other day. " if _VARIANTS[params["variant"]][2] else ""
        return f"{read}Days are full: {params['free']} the day before you put anything on it."

    def plan(self, params, message, slip, rng):
        day, *rest = re.findall(r"\w+", message.split(" on ")[1])
        if params["variant"] in ("read-then-write", "missing value"):
            hour = int((yield "Which hour?", "read", {"day": rest[-1]}))
        else:
            hour = int(rest[1])
        if slip == base.GUESSES:
            hour = base.guess(hour, rng)
        if slip != base.FORGETS:
            yield f"Free {day}.", params["free"], {"day": day}
        yield f"Put it at {hour}.", "put", {"day": day, "hour": hour}


FAMILY = Calendar()
