"""Move mails to boxes, which have to be made first."""

from __future__ import annotations

import re

from spade_jax.envs.families.tools import base

_BODY = """
    def setup(self, rng):
        names = rng.sample({names}, {items})
        self.mails = dict(zip(names, rng.sample(range({low}, {low} + 40), {items})))
        self.moved = {{}}
        self.boxes = []
        for a, b in zip(names, names[1:]):
            n = self.mails[a]
            self.ask(f"{text}", lambda b=b, n=n: self.moved.get(n) == b, {read}["{make}", b], ["move", n, b])

    def find(self, name: str):
        return self.mails[name]

    def {make}(self, box: str):
        self.boxes.append(box)

    def move(self, mail: int, box: str):
        if box not in self.boxes:
            return "no box"
        self.moved[mail] = box
"""
_FIND = '["find", a], '
_VARIANTS = {
    "execute": ("Move mail {n} to box {b}.", ""),
    "read-then-write": ("Move the mail of {a} to box {b}.", _FIND),
    "missing value": ("Give {a} a box {b}.", _FIND),
    "irrelevant request": ("Move mail {n} to box {b}.", ""),
}


class Mailbox(base.ToolFamily):
    name = "mailbox"
    skill = "mail"

    def constants(self, rng, hard):
        low = rng.randint(50, 58) if hard else rng.randint(10, 40)
        return {"low": low, "make": rng.choice(("make", "open", "add"))}

    def source(self, params, words):
        text, read = _VARIANTS[params["variant"]]
        turns = params["messages"] * (4 if read else 3) + 2
        values = {**params, "text": text + params["aside"], "read": read}
        return base.header(words, "Mail", turns) + _BODY.format(names=base.items(words), **values)

    def hint(self, params):
        find = "Find the mail by its name. " if _VARIANTS[params["variant"]][1] else ""
        return f"{find}A box is not there yet: {params['make']} it before you move a mail into it."

    def plan(self, params, message, slip, rng):
        words = re.findall(r"\w+", message)
        box = re.search(r"(?:to|a) box (\w+)", message)[1]  # a name may be "box" itself
        if params["variant"] in ("read-then-write", "missing value"):
            mail = int((yield "Which mail?", "find", {"name": words[1] if "Give" in words else words[4]}))
        else:
            mail = int(words[2])
        if slip == base.GUESSES:
            mail = base.guess(mail, rng)
        if slip != base.FORGETS:
            yield "Make the box.", params["make"], {"box": box}
        yield "Move it.", "move", {"mail": mail, "box": box}


FAMILY = Mailbox()
