"""The families of optimization and causal inference, and the table lookup."""

from __future__ import annotations

import random

import pytest

from spade_jax.envs.families import base
from tests.envs import family_checks as checks

FAMILIES = {
    "best_offer": "optimization",
    "coin_target": "optimization",
    "load_limit": "optimization",
    "switch_lamp": "causal inference",
    "press_order": "causal inference",
    "valve_chain": "causal inference",
    "table_lookup": "logical deduction",
}
HELD_OUT = {"load_limit", "valve_chain"}


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


@pytest.mark.parametrize("name", FAMILIES)
def test_the_whole_program_obeys_the_hint(name):
    """A hinted player without slips wins, so the hint is true and enough."""
    family = checks.load_family(name)
    for draw in range(10):
        params, source = checks.program(family, base.TRAIN, draw)
        cls = checks.build(source)
        for seed in range(10):
            player = family.player(params, _Steady(seed), hinted=True)
            assert checks.play(cls, seed, lambda o, player=player: _box(player.act(o)))[1], (params, seed)


class _Steady(random.Random):
    """A generator whose `random()` never triggers a slip."""

    def random(self) -> float:
        return 0.999


def _box(response: str) -> str:
    return response[response.index("\\boxed{") :]


def _instance(name, **params):
    family = checks.load_family(name)
    drawn = {**family.parameters(random.Random(0), base.TRAIN), **params}
    env = checks.build(family.source(drawn, checks.WORDS))()
    env.reset(seed=0)
    return env


def _texts(env, *commands):
    return [env.step(f"\\boxed{{{command}}}")[0] for command in commands]


def test_best_offer_sells_only_what_was_looked_at():
    env = _instance("best_offer", verb="buy", labels="1234567", turns=8)
    env.best, env.prices = "2", dict(zip("1234567", (14, 11, 19, 18, 17, 16, 15), strict=True))
    assert _texts(env, "buy 2", "look 3", "buy 3", "look 2", "buy 2") == [
        "Not so.",
        "3 costs 19.",
        "Not so.",
        "2 costs 11.",
        "The cheapest.",
    ]


def test_coin_target_counts_down():
    env = _instance("coin_target", big=9, small=4, coins=("4", "7", "9"), kinds=3, turns=6)
    env.left = 22
    assert _texts(env, "9", "5", "9", "4") == [
        "Paid 9, 13 left.",
        "No such coin, 13 left.",
        "Paid 9, 4 left.",
        "Paid 4, 0 left.",
    ]
    env.left, env.turn = 8, 0
    assert _texts(env, "9", "4") == ["Paid 9, -1 left.", "Paid 4, -5 left."]


def test_load_limit_moves_items_in_and_out():
    env = _instance("load_limit", letters="ABCDEF", size=6)
    env.items, env.left = {"A": 10, "B": 13}, 10
    assert _texts(env, "B", "B", "Z", "A") == [
        "Moved B, -3 to go.",
        "Moved B, 10 to go.",
        "No such item, 10 to go.",
        "Moved A, 0 to go.",
    ]


@pytest.mark.parametrize(
    ("lit", "seen"), [("now", ["It changes.", "It stays."]), ("late", ["It stays.", "It changes."])]
)
def test_switch_lamp_answers_at_once_or_late(lit, seen):
    env = _instance("switch_lamp", lit=lit, labels="1234567", turns=8)
    env.driver = "4"
    assert _texts(env, "say 4", "flip 4", "flip 5", "say 5", "say 4") == ["Not so.", *seen, "Not so.", "Correct."]


@pytest.mark.parametrize(("order", "labels"), [("rising", ["2", "5", "7", "9"]), ("falling", ["9", "7", "5", "2"])])
def test_press_order_sorts(order, labels):
    env = _instance("press_order", order=order, labels="2579")
    assert env.solution() == labels


@pytest.mark.parametrize(("back", "kept"), [("keep", 2), ("step", 1)])
def test_press_order_charges_a_wrong_press(back, kept):
    env = _instance("press_order", order="rising", labels="2579", back=back)
    assert _texts(env, "2", "5", "2") == [
        "Button 2 is right, 1 done.",
        "Button 5 is right, 2 done.",
        f"Wrong, {kept} done.",
    ]


def test_valve_chain_walks_the_ring():
    env = _instance("valve_chain", valves=7, stride=3, length=3, turns=5)
    start = (int(env.solution()[0]) - 4) % 7  # counted from 0
    assert env.solution() == [str((start + 3 * k) % 7 + 1) for k in (1, 2, 3)]
    assert _texts(env, "x", env.solution()[0]) == [
        "That valve is dry, 3 to go.",
        f"Valve {env.solution()[0]} flows, 2 to go.",
    ]


def test_table_lookup_reads_and_answers():
    env = _instance("table_lookup", turns=8)
    env.path, env.table, env.answer = ["A", "B", "C"], {"A": "B", "B": "C", "C": 20}, 17
    assert env.solution() == ["get B", "get C", "say 17"]
    assert _texts(env, "get B", "get C", "get Z", "say 20", "say 17") == [
        "B holds C.",
        "C holds 20.",
        "Not so.",
        "Not so.",
        "Correct.",
    ]
