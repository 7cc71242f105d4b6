"""The families of spatial reasoning and pattern recognition."""

from __future__ import annotations

import random

import pytest

from spade_jax.designer import prompts
from spade_jax.envs.families import base
from tests.envs import family_checks as checks

SPATIAL = ("grid_walk", "warm_cold", "ring_walk")
PATTERN = ("number_sequence", "symbol_cycle", "letter_sequence")
TURNED = {"n": (1, 0), "s": (-1, 0), "e": (0, -2), "w": (0, 2)}


def _environment(name: str, **params):
    family = checks.load_family(name)
    return checks.build(family.source(params, checks.WORDS))()


@pytest.mark.parametrize("name", SPATIAL + PATTERN)
def test_family(name):
    family = checks.load_family(name)
    assert family.name == name
    assert family.skill == ("spatial reasoning" if name in SPATIAL else "pattern recognition")
    assert family.skill in prompts.SKILLS
    assert family.held_out == (name in ("ring_walk", "letter_sequence"))
    checks.check_family(family)


@pytest.mark.parametrize("name", SPATIAL + PATTERN)
def test_a_perturbed_solution_loses(name):
    family = checks.load_family(name)
    for draw in range(5):
        _, source = checks.program(family, base.TRAIN, draw)
        cls = checks.build(source)
        for seed in range(5):
            commands = checks.solution_of(cls, seed)
            assert not checks.replay(cls, seed, ["pass", *commands[1:]])[0]


@pytest.mark.parametrize("name", SPATIAL + PATTERN)
def test_random_commands_rarely_win(name):
    """Random commands drawn from the solutions of other seeds, thus all legal ones."""
    family = checks.load_family(name)
    wins = games = 0
    for draw in range(10):
        _, source = checks.program(family, base.TRAIN, draw)
        cls = checks.build(source)
        commands = sorted({command for seed in range(40) for command in checks.solution_of(cls, seed)})
        rng = random.Random(draw)
        for seed in range(40):
            wins += checks.play(cls, seed, lambda _, rng=rng, legal=commands: rng.choice(legal))[1]
            games += 1
    assert wins / games <= 0.2 if name == "warm_cold" else wins / games <= 0.1


def test_grid_walk_moves_by_its_own_map():
    env = _environment("grid_walk", moves=TURNED, far=2, longest=1, turns=5)
    env.reset(seed=0)
    env.spot, env.goal = [12, 12], [13, 10]
    assert env.step("\\boxed{n}") == ("Now x 13, y 12. Goal x 13, y 10.", 0.0, False, False, {"success": False})
    assert env.step("\\boxed{e}")[:3] == ("Now x 13, y 10. Goal x 13, y 10.", 0.0, False)
    assert env.step("\\boxed{stop}") == ("You win.", 1.0, True, False, {"success": True})
    env.reset(seed=0)
    assert env.step("\\boxed{stop}")[1:3] == (0.0, True)


def test_grid_walk_hint_names_the_axes():
    hint = checks.load_family("grid_walk").hint({"moves": TURNED})
    assert hint == "The controls are odd: n raises x, s lowers x, e lowers y, w raises y."


@pytest.mark.parametrize(("factor", "extra", "echo"), [(1, 3, 10), (2, 0, 14)])
def test_warm_cold_echo(factor, extra, echo):
    env = _environment("warm_cold", factor=factor, extra=extra, least=16, most=25, turns=3)
    env.reset(seed=0)
    env.target = 12
    assert env.step("\\boxed{5}")[0] == f"The echo at 5 is {echo}."
    assert env.step("\\boxed{five}")[0] == "Answer with a number."
    assert env.step("\\boxed{12}")[:3] == ("Found.", 1.0, True)


def test_ring_walk_wraps_and_punishes_an_early_stop():
    env = _environment("ring_walk", size=25, last=24, step=3, near=3, far=4, turns=7)
    env.reset(seed=0)
    env.spot, env.goal = 23, 1
    assert env.step("\\boxed{left}")[0] == "Now at 1. Goal 1."
    assert env.step("\\boxed{stop}")[1:3] == (1.0, True)
    env.reset(seed=0)
    assert env.step("\\boxed{stop}")[1:3] == (0.0, True)


@pytest.mark.parametrize(
    ("cycle", "grow", "terms"), [([2, 5], 0, [2, 7, 9, 14, 16]), ([3, 0], 1, [3, 7, 12, 18, 25])]
)
def test_number_sequence_rule(cycle, grow, terms):
    env = _environment("number_sequence", cycle=cycle, grow=grow, show=3, need=2, turns=3)
    env.reset(seed=0)
    assert [term - env.terms[0] for term in env.terms[1:6]] == terms
    assert env.solution() == [str(term) for term in env.terms[3:5]]


def test_symbol_cycle_jumps():
    env = _environment("symbol_cycle", size=5, jumps=(2, 1), show=2, need=3, turns=4)
    env.reset(seed=0)
    spots = [env.row.index(colour) for colour in env.path[:6]]
    assert [(spot - spots[0]) % 5 for spot in spots] == [0, 2, 3, 0, 1, 3]


def test_letter_sequence_steps_wrap_round():
    env = _environment("letter_sequence", steps=(1, 3), need=2, turns=3)
    env.reset(seed=0)
    spots = [ord(letter) - ord("a") for letter in env.path[:5]]
    assert [(spot - spots[0]) % 26 for spot in spots] == [0, 1, 4, 5, 8]
    assert all("a" <= letter <= "z" for letter in env.path)
