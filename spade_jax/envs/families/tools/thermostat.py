"""Heat rooms; a degree that was set stays only when it is held."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        rooms = rng.sample({names}, {items})
        self.heat = dict(zip(rooms, rng.sample(range({low}, {low} + 9), {items})))
        self.held = {{}}
        for a, b in zip(rooms, rooms[1:]):
            n = {value}
            self.ask(f"{text}", lambda a=a, n=n: self.held.get(a) == n, {read}["set", a, n], ["{hold}", a])

    def read(self, room: str):
        return self.heat[room]

    def set(self, room: str, heat: int):
        self.heat[room] = heat
        return "not held"

    def {hold}(self, room: str):
        self.held[room] = self.heat[room]
"""
_VARIANTS = {
    "execute": ("Set {a} to {n}.", "rng.randint(20, 40)", ""),
    "read-then-write": ("Set {a} like {b}.", "self.heat[b]", '["read", b], '),
    "missing value": ("Make {a} no colder than {b}.", "self.heat[b]", '["read", b], '),
    "irrelevant request": ("Set {a} to {n}.", "rng.randint(20, 40)", ""),
}


class Thermostat(base.ToolFamily):
    name = "thermostat"
    skill = "home automation"
    held_out = True

    def constants(self, rng, hard):
        return {
            "low": rng.randint(12, 14) if hard else rng.randint(5, 11),
            "hold": rng.choice(("hold", "lock", "keep")),
        }

    def source(self, params, words):
        text, value, read = _VARIANTS[params["variant"]]
        turns = params["messages"] * (4 if read else 3) + 2
        values = {**params, "text": text + params["aside"], "value": value, "read": read}
        return base.header(words, "Heat", turns) + _BODY.format(names=base.items(words), **values)

    def hint(self, params):
        read = "Read the other room. " if _VARIANTS[params["variant"]][2] else ""
        return f"{read}Set the room, then {params['hold']} it, or the heat is lost."

    def plan(self, params, message, slip, rng):
        words = re.findall(r"\w+", message)
        room = words[1]
        if params["variant"] in ("read-then-write", "missing value"):
            heat = int((yield "How warm is it?", "read", {"room": words[3] if message.startswith("Set") else words[5]}))
        else:
            heat = int(words[3])
        if slip == base.GUESSES:
            heat = base.guess(heat, rng)
        yield f"Set it to {heat}.", "set", {"room": room, "heat": heat}
        if slip != base.FORGETS:
            yield "Hold it.", params["hold"], {"room": room}


FAMILY = Thermostat()
