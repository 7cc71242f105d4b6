from __future__ import annotations

import dataclasses

import pytest

from spade_jax.designer import gate, parse, reward
from spade_jax.designer.gate import session
from spade_jax.sandbox.pool import Pool

SKELETON = """\
import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.code = rng.randint(100, 999)
        self.step_count = 0
        return f"Door {self.code % 89}. Say the code.", {}

    def step(self, action):
        self.turn += 1
        won = action == "\\\\boxed{" + str(self.code) + "}"
        return "Yes." if won else "No.", float(won), won or self.turn >= self.max_turns, False, {}

    def solution(self):
        return [str(self.code)]
"""


def variant(old: str, new: str) -> str:
    assert old in SKELETON
    return SKELETON.replace(old, new)


def report(pool, source):
    (result,) = gate.run_gates(pool, [source])
    assert not pool.live, "a child was left behind"
    return result


def test_a_sound_program_passes_every_check(pool, sound_source):
    result = report(pool, sound_source)
    assert result.valid and result.solvable
    assert tuple(v.name for v in result.verdicts) == gate.CHECKS
    assert all(v.passed and v.evidence for v in result.verdicts)
    assert all(v.seconds > 0 for v in result.verdicts[1:])


def test_the_skeleton_of_these_tests_is_sound(pool):
    assert report(pool, SKELETON).valid


@pytest.mark.parametrize(
    ("source", "failure", "check", "evidence"),
    [
        (None, "no_code", "parse", "no fenced program"),
        ("class Door(:", "unparsable", "parse", "line 1"),
        (variant("import random", "import random, os"), "banned", "parse", "import of os"),
        (variant("self.max_turns = max_turns", "1 / 0"), "contract", "contract", "construct: exception: ZeroDivision"),
        (variant("self.turn = 0", "self.turn = missing"), "contract", "contract", "reset(seed="),
        (variant('f"Door', '"x" * 5000 + f"Door'), "contract", "contract", "characters; the limit is 4000"),
        (
            variant('return f"Door {self.code % 89}. Say the code.", {}', 'return " ", {}'),
            "contract",
            "contract",
            "empty",
        ),
        (variant("float(won)", "float('nan')"), "contract", "contract", "the reward is nan"),
        (variant("float(won), won or", "won or"), "contract", "contract", "no 5-tuple"),
        (variant("self.turn += 1", "self.turn += 1; int(action[7:-1])"), "crash", "contract", "ValueError"),
        (
            variant("self.turn += 1", "self.turn += 1\n        if len(action) > 5000: raise MemoryError"),
            "memory",
            "contract",
            "MemoryError",
        ),
        (variant("self.turn += 1", "self.turn += 1; raise TimeoutError('2 s')"), "timeout", "contract", "timeout: 2 s"),
        (variant('"No."', 'f"No. {HASH_SEED}"'), "nondeterministic", "determinism", "two processes say"),
        (variant("random.Random(seed)", "random.Random()"), "nondeterministic", "determinism", "turn 0"),
        (
            variant("[str(self.code)]", "[str(self.code + 1)]"),
            "unsolvable",
            "solvable",
            "ends at turn 1 with reward 0.0",
        ),
        (variant("[str(self.code)]", "[]"), "unsolvable", "solvable", "solution() is empty"),
        (variant("[str(self.code)]", "['x'] * 26"), "unsolvable", "solvable", "26 turns of 25"),
        (variant("[str(self.code)]", "[str(self.kode)]"), "crash", "determinism", "AttributeError"),
        (variant("float(won)", "1.0 if won else 0.3"), "trivial", "nontrivial", '"empty" averages 0.30'),
        (variant("float(won), won or", 'float(won), won or "done" in action or'), None, None, ""),
        (variant("won =", 'won = "done" in action or'), "trivial", "nontrivial", '"done" averages 1.00'),
        (variant("won =", 'won = "Door" in action or'), "trivial", "nontrivial", '"echo" averages 1.00'),
        (
            variant("Say the code.", "Go 'left' or 'right'.")
            .replace('str(self.code) + "}"', '"left}"')
            .replace("[str(self.code)]", '["left"]'),
            "trivial",
            "nontrivial",
            '"repeat-one" averages 1.00',
        ),
        (
            variant("Say the code.", "Red, green or blue?")
            .replace(
                "self.code = rng.randint(100, 999)",
                "self.code = rng.choice(['green', 'blue'])\n        self.number = rng.randint(0, 99)",
            )
            .replace("{self.code % 89}", "{self.number}"),
            "trivial",
            "nontrivial",
            '"random-listed-action"',
        ),
        (variant("{self.code % 89}", ""), "not_varied", "varied", "1 first observations over 8 seeds"),
        (
            variant("rng.randint(100, 999)", "777").replace("{self.code % 89}", "{rng.random()}"),
            "not_varied",
            "varied",
            "one solution for all 8 seeds",
        ),
    ],
)
def test_verdicts(pool, source, failure, check, evidence):
    result = report(pool, source)
    assert result.failure == failure
    if failure is None:
        return
    last = result.verdicts[-1]
    assert (last.name, last.passed, result.solvable) == (check, False, False)
    assert evidence in last.evidence
    assert all(v.passed for v in result.verdicts[:-1])
    assert failure in reward.FAILURE_REWARD


def test_one_lucky_guess_does_not_condemn_a_program(pool):
    # "done" wins on about one seed in twenty: at most .1 over many seeds, not over every eight.
    program = variant("won =", 'won = "done" in action and self.code % 20 == 0 or')
    variants = [f"{program}\n# {i}\n" for i in range(24)]
    few = gate.run_gates(pool, variants, dataclasses.replace(gate.DEFAULT_CONFIG, trivial_seeds=8))
    many = gate.run_gates(pool, variants)
    assert sum(r.failure == "trivial" for r in few) >= 4
    assert sum(r.failure == "trivial" for r in many) <= sum(r.failure == "trivial" for r in few) // 2


def test_a_program_without_solution_is_accepted_unverified(pool):
    source = SKELETON[: SKELETON.index("    def solution")]
    result = report(pool, source)
    assert result.valid and not result.solvable
    assert {v.name: v.passed for v in result.verdicts}["solvable"] is None


def test_a_fault_of_the_sandbox_is_masked(pool, sound_source):
    pool.broken = True
    result = report(pool, sound_source)
    assert result.failure == "infrastructure"
    assert result.verdicts[-1].passed is None
    assert reward.failure_reward(result.failure) is None


def test_many_gates_on_one_pool_give_the_reports_of_each_alone(pool, sound_source):
    sources = [sound_source, None, SKELETON, variant("[str(self.code)]", "[]")] * 12
    config = gate.GateConfig(gate.CHECKS[:-1])  # or the copies would be duplicates of each other
    together = gate.run_gates(pool, sources, config)
    assert not pool.live
    assert [r.failure for r in together] == [None, "no_code", None, "unsolvable"] * 12
    assert together[:4] == [gate.run_gates(pool, [source], config)[0] for source in sources[:4]]


def test_no_gates(pool):
    assert gate.run_gates(pool, []) == []


def test_listed_actions():
    assert gate.listed_actions("Say 'north' or 'go home'. It's Bob's.") == ["north", "go home"]
    assert gate.listed_actions("Commands: [look, take|drop]") == ["look", "take", "drop"]
    assert gate.listed_actions("Is it red, green, or dark-blue?") == ["red", "green", "dark-blue"]
    assert gate.listed_actions('Type "open" now.') == ["open"]
    assert gate.listed_actions("A number from 3 to 9.") == []
    assert len(gate.listed_actions(", ".join(f"'w{i}'" for i in range(99)))) == 20


def test_gate_seeds_differ_by_program_and_index():
    one = session.Session(parse.parse_program(SKELETON), gate.DEFAULT_CONFIG)
    other = session.Session(parse.parse_program(SKELETON + "\n"), gate.DEFAULT_CONFIG)
    assert len({one.seed(0), one.seed(1), other.seed(0)}) == 3
    assert 0 <= one.seed(0) < 2**63


def test_the_real_sandbox_gives_the_same_verdicts(sound_source):
    sources = {
        sound_source: None,
        SKELETON: None,
        variant("self.turn += 1", "self.turn += 1; int(action[7:-1])"): "crash",
        variant("self.turn += 1", "self.turn += 1; self.x = [0] * 10**9"): "memory",
        variant("self.turn += 1", "self.turn += 1\n        while True: pass"): "timeout",
        variant("float(won), won or", "won, won or"): "contract",
        variant("random.Random(seed)", "random"): "nondeterministic",
        variant('"No."', 'f"No {hash(action)}"'): "nondeterministic",
        variant('"No."', '"No " + " ".join({"a", "b", "c", "d", "e", "f"})'): "nondeterministic",
        variant("[str(self.code)]", "[str(self.code + 1)]"): "unsolvable",
    }
    with Pool() as pool:
        reports = gate.run_gates(pool, list(sources))
    assert [result.failure for result in reports] == list(sources.values())
