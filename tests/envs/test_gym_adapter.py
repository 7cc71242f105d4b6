"""Our programs under Gymnasium's checker, and Gymnasium environments as our programs."""

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.utils.env_checker import check_env

from spade_jax.envs import bundled, contract, families
from spade_jax.envs.gym_adapter import GymnasiumProgram, ProgramEnv, TrustedPool, describe, trusted_record
from tests.envs import family_checks as checks

PROBE = {drawn.family.name: drawn for drawn in bundled.held_out_probe(1)}


def _program_class(name="number_search"):
    return checks.build(PROBE[name].record.source)


@pytest.mark.parametrize("name", [family.name for family in families.all_families()])
def test_every_family_passes_gymnasiums_checker(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Only registered environments can be remade in another render mode.
        warnings.filterwarnings("ignore", message=".*Not able to test alternative render modes.*")
        check_env(ProgramEnv(_program_class(name), render_mode="ansi"))


@pytest.mark.parametrize("name", [family.name for family in families.all_families()])
def test_there_and_back_is_the_same_program(name):
    cls = _program_class(name)
    direct, through = cls(), GymnasiumProgram(lambda: ProgramEnv(cls), max_turns=100)
    for seed in range(3):
        assert through.reset(seed=seed)[0] == direct.reset(seed=seed)[0]
        for command in ["nonsense", *direct.solution()]:
            action = f"\\boxed{{{command}}}"
            text, score, terminated, truncated, info = through.step(action)
            expected = direct.step(action)
            assert (text, terminated, truncated, info) == (expected[0], *expected[2:])
            assert score == pytest.approx(expected[1])
            if terminated or truncated:
                break


def test_rewards_add_up_to_the_score():
    class Steps:
        def reset(self, seed=None):
            self.scores = iter((0.25, 0.75, 0.5))
            return "caf\u00e9", {}

        def step(self, action):
            score = next(self.scores)
            return action, score, score == 0.5, False, {"success": False}

    env = ProgramEnv(Steps)
    assert env.reset(seed=0) == ("caf?", {})
    assert [env.step("go")[:2] for _ in range(3)] == [("\\boxed{go}", r) for r in (0.25, 0.5, -0.25)]


def test_reset_without_a_seed_goes_on_from_the_last():
    env = ProgramEnv(_program_class("best_offer"), render_mode="ansi")

    def texts():
        env.reset(seed=3)
        return [env.reset()[0] for _ in range(6)]

    first = texts()
    assert first == texts() and len(set(first)) > 1
    assert env.render() == first[-1]


def test_a_program_env_refuses_other_render_modes():
    with pytest.raises(ValueError, match="render_mode is 'human'"):
        ProgramEnv(_program_class(), render_mode="human")


class Corridor(gymnasium.Env):
    """Five cells; the right end pays 2, every step costs 0.5."""

    render_mode = None

    def __init__(self, action_space=None, info=None):
        self.action_space = action_space or spaces.Discrete(2, start=1)
        self.observation_space = spaces.Dict({"cell": spaces.Discrete(5), "wind": spaces.Box(0, 1, (2,))})
        self._info = info or {}

    def _seen(self):
        return {"cell": np.int64(self.cell), "wind": np.array([0.5, 0.2])}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.cell = 2
        return self._seen(), {}

    def step(self, action):
        self.cell += 1 if action in (2, "right") else -1
        ended = self.cell in (0, 4)
        reward = (2.0 if self.cell == 4 else 0.0) - 0.5
        return self._seen(), reward, ended, False, {key: value for key, value in self._info.items() if ended}


def test_a_discrete_environment_keeps_the_contract():
    program = GymnasiumProgram(
        Corridor, max_turns=9, return_range=(-1.0, 1.0), actions=("left", "right"), instructions="Reach cell 4."
    )
    text, info = program.reset(seed=0)
    assert text == "Reach cell 4.\ncell: 2; wind: [0.5 0.2]\nAnswer with one of: left, right."
    assert info == {}
    # The return is -0.5 after one step: a quarter of the way from -1 to 1.
    assert program.step("\\boxed{right}") == ("cell: 3; wind: [0.5 0.2]", 0.25, False, False, {})
    reply = program.step("\\boxed{jump}")
    assert reply == ("'jump' is not an action. Answer with one of: left, right.", 0.25, False, False, {})
    text, score, terminated, truncated, info = program.step("right")  # a bare response is an answer, too
    assert (score, terminated, truncated) == (1.0, True, False)  # -0.5 + 1.5 = 1
    assert contract.succeeded(score, terminated, info)


def test_numbers_name_the_actions_where_no_names_are_given():
    program = GymnasiumProgram(Corridor, return_range=(-1.0, 1.0))
    assert program.reset(seed=0)[0].endswith("Answer with one of: 1, 2.")
    assert program.step("\\boxed{2}")[0].startswith("cell: 3")
    for garbage in ("", "0", "3", "2.0", "\u00b2", "\u0662", "9" * 5000, "{}", "'\"", "True"):
        text, score, terminated, truncated, _ = program.step(f"\\boxed{{{garbage}}}")
        assert "is not an action" in text and len(text) < 200 and (score, terminated, truncated) == (0.25, False, False)


def test_a_text_environment_says_which_characters_it_takes():
    space = spaces.Text(5, charset="left right")
    program = GymnasiumProgram(lambda: Corridor(space))
    assert program.reset()[0] == "cell: 2; wind: [0.5 0.2]"
    assert (
        program.step("\\boxed{up}")[0]
        == f"'up' is not an action. Answer with 1 to 5 characters of {space.characters!r}."
    )
    assert program.step("\\boxed{right}")[0].startswith("cell: 3")


@pytest.mark.parametrize("key", ["success", "is_success"])
def test_the_environments_word_on_success_counts(key):
    program = GymnasiumProgram(lambda: Corridor(info={key: np.bool_(True), "cells": {1, 2}}))
    program.reset()
    program.step("1")
    _, score, terminated, _, info = program.step("1")
    assert (score, terminated, info) == (0.0, True, {"success": True})
    assert isinstance(info["success"], bool)


def test_turns_run_out():
    program = GymnasiumProgram(Corridor, max_turns=2)
    program.reset()
    assert program.step("what")[3] is False
    assert program.step("what")[2:4] == (False, True)


def test_a_rendering_environment_is_shown_as_rendered():
    program = GymnasiumProgram(
        lambda: gymnasium.make("FrozenLake-v1", is_slippery=False, render_mode="ansi"),
        actions=("left", "down", "right", "up"),
    )
    assert program.reset(seed=0)[0] == "[S]FFF\nFHFH\nFFFH\nHFFG\nAnswer with one of: left, down, right, up."
    replies = [program.step(f"\\boxed{{{move}}}") for move in ("down", "down", "right", "down", "right", "right")]
    assert replies[0][0] == "(Down)\nSFFF\n[F]HFH\nFFFH\nHFFG"
    assert replies[-1][1:4] == (1.0, True, False)
    program.close()


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"return_range": (1.0, 1.0)}, "return_range is"),
        ({"actions": ("left",)}, "1 names; the environment has 2 actions"),
        ({"make": lambda: Corridor(spaces.Text(3)), "actions": ("left",)}, "a Text action space takes none"),
        ({"make": lambda: Corridor(spaces.MultiDiscrete([2, 2]))}, "the action space is MultiDiscrete"),
    ],
)
def test_bad_arguments_name_themselves(keywords, message):
    with pytest.raises(ValueError, match=message):
        GymnasiumProgram(**{"make": Corridor, **keywords})


@pytest.mark.parametrize(
    ("observation", "text"),
    [
        ("as it is", "as it is"),
        (np.int64(3), "3"),
        (np.float32(0.125), "0.125"),
        (np.array(7), "7"),
        (np.array([[1, 2], [3, 4]]), "[[1 2]\n [3 4]]"),
        ((1, "a"), "1, a"),
        ({"hand": (12, False), "dealer": np.array([2])}, "hand: 12, False; dealer: [2]"),
    ],
)
def test_describe(observation, text):
    assert describe(observation) == text


def test_a_trusted_pool_answers_as_the_sandbox_does():
    record = trusted_record("Corridor", skill="spatial reasoning")
    assert record == trusted_record("Corridor", skill="spatial reasoning") != trusted_record("Other")
    pool = TrustedPool({"Corridor": lambda: GymnasiumProgram(Corridor, return_range=(-1.0, 1.0))})
    env = pool.open(record.source, record.class_name)
    other = pool.open(record.source, record.class_name)
    early = pool.request(env, "reset", 0)
    tickets = [pool.request(env, "construct"), pool.request(env, "reset", 0), pool.request(env, "step", "2")]
    pool.request(other, "construct")
    pool.close(other)
    pool.close(other)
    replies = pool.poll(None)
    assert [reply.ticket for reply in replies] == [early, *tickets]
    assert [(reply.ok, reply.kind) for reply in replies] == [(False, "exception"), *[(True, "ok")] * 3]
    assert replies[0].error.startswith("KeyError") and replies[1].value is None
    assert replies[3].value == ("cell: 3; wind: [0.5 0.2]", 0.25, False, False, {})
    assert pool.poll(0) == []
    pool.request(env, "solution")
    assert pool.poll(0)[0].error.startswith("AttributeError")
    pool.request(env, "__class__")
    assert pool.poll(0)[0].error.startswith("ValueError: method is '__class__'")
    with pytest.raises(ValueError, match="known programs: Corridor"):
        pool.open("", "Missing")
