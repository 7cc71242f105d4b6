"""The gate on tool-use programs: what it asks of them besides, and of the bundled ones."""

from __future__ import annotations

import dataclasses

import pytest

from spade_jax.designer import gate, reward
from spade_jax.envs import bundled
from spade_jax.envs.families import base
from spade_jax.sandbox import Pool

CONFIG = gate.GateConfig(checks=gate.CHECKS, kind="tool")

SOUND = """\
from toolkit import ToolEnvironment


class Lamps(ToolEnvironment):
    def setup(self, rng):
        self.level = dict.fromkeys("abcd", 0)
        self.log = []
        for lamp in rng.sample("abcd", 3):
            code = rng.randint(100, 999)
            self.ask(f"Set {lamp} to {code}.", lambda x=lamp, code=code: self.level[x] == code, ["set", lamp, code])

    def set(self, lamp: str, level: int):
        if lamp not in self.level:
            return "no lamp"
        self.level[lamp] = level

    def read(self, lamp: str):
        return self.level[lamp]

    def clear(self):
        self.log = []
"""


def variant(old: str, new: str) -> str:
    assert old in SOUND, old
    return SOUND.replace(old, new)


@pytest.fixture(scope="module")
def pool():
    with Pool() as pool:
        yield pool


def test_the_checks_of_tools_stand_behind_those_they_build_on():
    assert [name for name in gate.checks_of("tool") if name not in gate.CHECKS] == ["criteria", "reference"]
    assert [name for name in gate.checks_of("tool") if name in gate.CHECKS] == list(gate.CHECKS)
    order = gate.checks_of("tool").index
    assert order("contract") + 1 == order("criteria") and order("solvable") + 1 == order("reference")
    assert gate.checks_of("game") == gate.CHECKS


def test_a_sound_program_passes_every_check(pool):
    (report,) = gate.run_gates(pool, [SOUND], CONFIG)
    assert report.valid and report.solvable, report.verdicts[-1]
    assert tuple(v.name for v in report.verdicts) == gate.checks_of("tool")
    evidence = {v.name: v.evidence for v in report.verdicts}
    assert evidence["criteria"].startswith("3 tools, 3 messages, none satisfied at reset on 8 seeds; survives 9 calls")
    assert evidence["reference"] == "15 calls on 5 seeds: of the right types, derivable, in order"
    assert "random-call 0.0" in evidence["nontrivial"]


def test_every_bundled_program_passes(pool):
    drawn = bundled.bundled_records(base.TRAIN, 8, seed=1, kind="tool") + bundled.held_out_probe(1, kind="tool")
    # Programs of one family are near-duplicates of each other, which is another matter.
    checks = tuple(name for name in gate.CHECKS if name != "novel")
    reports = gate.run_gates(pool, [b.record.source for b in drawn], dataclasses.replace(CONFIG, checks=checks))
    assert [(b.family.name, r.verdicts[-1]) for b, r in zip(drawn, reports, strict=True) if not r.valid] == []


def test_the_paper_s_checks_include_the_criteria_and_not_the_reference(pool):
    (report,) = gate.run_gates(pool, [SOUND], gate.GateConfig(checks=("parse", "contract"), kind="tool"))
    assert [v.name for v in report.verdicts] == ["parse", "contract", "criteria"]


LOOP = """        for lamp in rng.sample("abcd", 3):
            code = rng.randint(100, 999)
            self.ask(f"Set {lamp} to {code}.", lambda x=lamp, code=code: self.level[x] == code, ["set", lamp, code])
"""
# The harness rewritten by the program: what its base class would refuse must still be seen.
FORGED = (
    SOUND
    + """
    def _met(self):
        return [False] * 3
"""
)
UNSOUND = {
    "a game": (
        "class A:\n    def reset(self): pass\n    def step(self): pass\n",
        "unparsable",
        "parse",
        "ToolEnvironment",
    ),
    "own step": (SOUND + "\n    def step(self, action):\n        pass\n", "banned", "parse", "method step"),
    "two tools": (variant("    def clear", "    def _clear"), "contract", "contract", "2 tools; a program has 3 to 8"),
    "two messages": (variant('rng.sample("abcd", 3)', '"ab"'), "contract", "contract", "2 messages; a program has"),
    "no annotation": (variant("read(self, lamp: str)", "read(self, lamp)"), "contract", "contract", "no annotation"),
    "wrong type": (
        variant('["set", lamp, code]', '["set", lamp, str(code)]'),
        "contract",
        "contract",
        "must be integer",
    ),
    "unknown tool": (variant('["set", lamp', '["put", lamp'), "contract", "contract", "is no call"),
    "raises at reset": (variant("self.level[x] == code", "self.done"), "contract", "contract", "AttributeError"),
    "met at reset": (variant("self.level[x] == code", "True"), "contract", "contract", "satisfied before anything"),
    "met on seed 1": (
        variant(
            "self.log = []\n        for", "self.log = []\n        free = rng.getrandbits(32) == 577090037\n        for"
        ).replace("self.level[x] == code", "free or self.level[x] == code"),
        "contract",
        "criteria",
        "reset(seed=1): ",
    ),
    "crashes on odd values": (
        variant("return self.level[lamp]", "return 1 // len(lamp)"),
        "crash",
        "criteria",
        "ZeroDivisionError",
    ),
    "reference too weak": (variant("== code,", "== code + 1,"), "unsolvable", "solvable", "ends at turn"),
    "met together": (
        variant(
            LOOP,
            """        code = rng.randint(100, 999)
        for lamp in "abc":
            self.ask(f"Set {code} {lamp}.", lambda: self.level["a"] == code, ["set", "a", code])
""",
        ),
        "unsolvable",
        "reference",
        "message 2 is satisfied before its turn",
    ),
    "not derivable": (
        variant("to {code}.", "to the right level."),
        "unsolvable",
        "reference",
        "which no message or result",
    ),
    "part of a number": (variant("to {code}.", "to {code}9."), "unsolvable", "reference", "which no message or result"),
    "no effect needed": (
        variant("self.level[x] == code", "len(self.log) > 0")
        .replace('return "no lamp"', 'return "no lamp" if not self.log.append(1) else 1')
        .replace("self.level[lamp] = level", "self.log.append(1)"),
        "unsolvable",
        "reference",
        "before its turn",
    ),
    "no criteria shown": (FORGED, "unsolvable", "reference", "do not satisfy it"),
    "one instance": (
        variant("rng.sample(", "list(").replace('"abcd", 3', '"abc"').replace("rng.randint(100, 999)", "5"),
        "not_varied",
        "varied",
        "1 first observations",
    ),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_verdicts(pool, name):
    source, failure, check, evidence = UNSOUND[name]
    (report,) = gate.run_gates(pool, [source], CONFIG)
    last = report.verdicts[-1]
    assert report.failure == failure, last
    assert last.name == check and evidence in last.evidence, last
    assert failure in reward.FAILURE_REWARD
