"""The families of mathematical reasoning and logical deduction."""

from __future__ import annotations

import random

import pytest

from spade_jax.envs.families import base
from tests.envs import family_checks as checks

FAMILIES = {
    "number_search": "mathematical reasoning",
    "mystery_operation": "mathematical reasoning",
    "letter_search": "mathematical reasoning",
    "code_lock": "logical deduction",
    "suspects": "logical deduction",
    "word_vault": "logical deduction",
}
HELD_OUT = {"letter_search", "word_vault"}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    family = checks.load_family(name)
    assert (family.name, family.skill, family.held_out) == (name, FAMILIES[name], name in HELD_OUT)
    checks.check_family(family)


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_depend_on_the_generator_only(name):
    family = checks.load_family(name)
    first, second = (family.parameters(random.Random(7), base.TRAIN) for _ in range(2))
    assert first == second
    assert family.source(first, checks.WORDS) == family.source(second, checks.WORDS)


def _instance(name, params, seed=0):
    family = checks.load_family(name)
    env = checks.build(family.source(params, checks.WORDS))()
    return env, env.reset(seed=seed)[0]


def test_number_search_narrows_down():
    env, observation = _instance("number_search", {"low": 5, "high": 5, "span": 2, "turns": 4})
    assert observation == "A import hides a number between 5 and 7. Guess it in 4 turns."
    assert env.step("\\boxed{5}") == ("Higher than 5.", 0.0, False, False, {"success": False})
    assert env.step("7")[0] == "Lower than 7."
    assert env.step("\u00b2")[0] == "Answer with a number."
    assert env.step(" \\boxed{6} ") == ("Correct.", 1.0, True, False, {"success": True})


@pytest.mark.parametrize(
    "kind, result", [("sum", 12), ("difference", 4), ("larger", 9), ("smaller", 7), ("second", 7)]
)
def test_mystery_operation_rules(kind, result):
    env, _ = _instance("mystery_operation", {"kind": kind, "k": 2, "top": 1, "need": 1, "turns": 4})
    assert env.solution() == [str({"sum": 4, "difference": 2}.get(kind, 3))]  # of 1 and 1
    source = checks.load_family("mystery_operation").source(
        {"kind": kind, "k": 2, "top": 1, "need": 1, "turns": 4}, checks.WORDS
    )
    expression = source.split("[str(")[1].split(") for a, b")[0]
    a, b = {"sum": (5, 5), "difference": (7, 5), "larger": (7, 5), "smaller": (7, 5), "second": (7, 5)}[kind]
    assert eval(expression, {"a": a, "b": b}) == result


def test_code_lock_sum_alternates():
    env, observation = _instance("code_lock", {"rule": "sum 13", "dials": 4, "turns": 6})
    first = int(observation.split("Dial 1 is ")[1][0])
    other = (13 - first) % 10
    assert env.solution() == [str(other), str(first), str(other)]
    assert env.step(f"\\boxed{{{other}}}")[0] == f"Dial 2 is {other}. Open dial 3."
    assert env.step(f"\\boxed{{{other}}}")[0] == ("Too low." if other < first else "Too high.")


def test_word_vault_goes_back():
    env, observation = _instance("word_vault", {"rule": "back 3", "alphabet": "abcdefghij", "size": 4, "turns": 6})
    start = "abcdefghij".index(observation.split("Letter 1 is ")[1][0])
    assert env.solution() == ["abcdefghij"[(start - 3 * i) % 10] for i in (1, 2, 3)]


def test_suspects_needs_both_witnesses():
    params = {"colors": ["red", "blue", "gray"], "size": "size", "lie": "swap", "turns": 5}
    env, observation = _instance("suspects", params)
    color, size, thief = env.solution()
    assert env.step(f"\\boxed{{{thief}}}")[0] == "Not proven."
    said = [env.step(f"\\boxed{{{question}}}")[0].split("says ")[1].rstrip(".") for question in (color, size)]
    swapped = {"tall": "short", "short": "tall"}[said[1]]
    assert f"{said[0]} {swapped} {thief}" in observation
    assert env.step(f"\\boxed{{{thief}}}")[1:3] == (1.0, True)


def test_the_checks_catch_a_bad_program():
    class Broken(type(checks.load_family("number_search"))):
        def source(self, params, words):
            return super().source(params, words).replace("return [str(self.target)]", 'return ["none"]')

    with pytest.raises(AssertionError, match="does not win"):
        checks.check_family(Broken(), draws=1)
