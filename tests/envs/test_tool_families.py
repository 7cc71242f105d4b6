"""The bundled families of tool use."""

from __future__ import annotations

import random

import pytest

from spade_jax import compose
from spade_jax.designer import prompts
from spade_jax.envs import bundled
from spade_jax.envs import families as game_families
from spade_jax.envs.families import base
from spade_jax.envs.families import tools as families
from spade_jax.envs.families.tools.base import VARIANT_WEIGHTS
from spade_jax.tokens import chat
from spade_jax.tokens import tokenizer as tokenizer_lib
from tests.envs import tool_family_checks as checks
from tests.envs.family_checks import SPLITS, WORDS, program

FAMILIES = {family.name: family for family in families.all_families()}
HELD_OUT = {"library", "thermostat"}
MAX_TOKENS = 420  # of a fenced program in the embedded tokenizer
CONTEXT = 1024  # of the embedded policy


def test_four_families_train_and_two_are_held_out():
    assert set(FAMILIES) == {"bank", "calendar", "mailbox", "warehouse", *HELD_OUT}
    assert {family.name for family in FAMILIES.values() if family.held_out} == HELD_OUT
    assert len({family.skill for family in FAMILIES.values()}) == 6


def test_games_do_not_list_them():
    assert len(game_families.all_families()) == 19
    assert not set(FAMILIES) & {family.name for family in game_families.all_families()}


@pytest.mark.parametrize("name", FAMILIES)
def test_family(name):
    checks.check_family(FAMILIES[name], draws=12)


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_depend_on_the_generator_only_and_cover_the_variants(name):
    family = FAMILIES[name]
    first, second = (family.parameters(random.Random(7), base.TRAIN) for _ in range(2))
    assert first == second
    assert family.source(first, WORDS) == family.source(second, WORDS)
    drawn = [family.parameters(random.Random(i), base.TRAIN)["variant"] for i in range(700)]
    for variant, weight in VARIANT_WEIGHTS.items():
        assert abs(drawn.count(variant) - 100 * weight) < 60, variant


@pytest.mark.parametrize("name", FAMILIES)
def test_a_hinted_player_without_slips_wins_every_instance(name):
    family = FAMILIES[name]
    for split in SPLITS:
        for draw in range(12):
            params, source = program(family, split, draw)
            cls = checks.build(source)
            for seed in range(5):
                assert checks.play(cls, seed, family.player(params, _Steady(seed), True).act)[1] == 1.0, params


class _Steady(random.Random):
    """A generator whose `random()` never triggers a slip."""

    def random(self) -> float:
        return 0.999


def test_the_embedded_policy_has_room_for_programs_and_plays():
    template = chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(compose.ASSETS / "tiny" / compose.TOKENIZER_FILE))
    encode = template.tokenizer.encode
    for family in FAMILIES.values():
        for split in SPLITS:
            for draw in range(12):
                params, source = program(family, split, draw)
                assert len(encode(prompts.fenced(source))) <= MAX_TOKENS, family.name
                player = family.player(params, _Steady(draw), True)
                responses = []

                def act(observation, player=player, responses=responses):
                    responses.append(player.act(observation))
                    return responses[-1]

                transcript, _ = checks.play(checks.build(source), draw, act)
                texts = [step[0] for step in transcript] + responses
                length = sum(len(encode(text)) + 3 for text in texts) + len(encode(family.hint(params))) + 20
                assert length < CONTEXT, (family.name, params, length)


def test_bundled_records_of_the_kind_carry_it():
    drawn = bundled.bundled_records(base.TRAIN, 8, seed=0, kind="tool")
    assert [b.family.name for b in drawn] == ["bank", "calendar", "mailbox", "warehouse"] * 2
    assert {b.record.kind for b in drawn} == {"tool"}
    probe = bundled.held_out_probe(1, kind="tool")
    assert {b.family.name for b in probe} == set(FAMILIES)
    for b in drawn + probe:
        assert checks.build(b.record.source).__name__ == b.record.class_name
