"""The canaries, judged by the real gate and by a gate that is out of order."""

import dataclasses
import logging
import random

import pytest

from spade_jax.designer import canaries, gate, parse
from spade_jax.rollout import regenerate
from spade_jax.sandbox import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool(max_live=16) as pool:
        yield pool


TOOL_CONFIG = dataclasses.replace(gate.DEFAULT_CONFIG, kind="tool")
KINDS = {"game": gate.DEFAULT_CONFIG, "tool": TOOL_CONFIG}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_the_gate_judges_them_right(pool, kind, seed, caplog):
    assert regenerate._send_canaries(pool, KINDS[kind], random.Random(seed)) == 0
    assert not caplog.records


def test_those_of_tool_use_are_programs_of_tool_use():
    for canary in canaries.draw(random.Random(0), "tool"):
        assert parse.parse_program(canary.source, "tool").class_name.endswith("Levels")


@pytest.mark.parametrize("kind", KINDS)
def test_they_are_not_constant(kind):
    drawn = [canaries.draw(random.Random(seed), kind) for seed in range(8)]
    assert [canary.name for canary in drawn[0]] == ["leaky", "coin flip", "solved", "sound"]
    assert len({canary.source for canaries_drawn in drawn for canary in canaries_drawn}) == 32


def test_a_gate_of_tool_use_out_of_order_is_noticed(pool, monkeypatch, caplog):
    monkeypatch.setattr(gate.sealed, "_require_no_secret", lambda *_: None)
    with caplog.at_level(logging.WARNING):
        assert regenerate._send_canaries(pool, TOOL_CONFIG, random.Random(0)) == 1
    (record,) = caplog.records
    assert "the leaky canary is sound where leak was due" in record.getMessage()


def test_a_gate_out_of_order_is_noticed(pool, monkeypatch, caplog):
    monkeypatch.setattr(gate.sealed, "_readable", lambda *_: "")
    with caplog.at_level(logging.WARNING):
        assert regenerate._send_canaries(pool, gate.DEFAULT_CONFIG, random.Random(0)) == 1
    (record,) = caplog.records
    assert "the leaky canary is sound where leak was due" in record.getMessage()


def test_checks_that_are_left_out_have_no_canary(pool):
    for config in KINDS.values():
        paper = dataclasses.replace(config, checks=("parse", "contract"))
        assert regenerate._send_canaries(pool, paper, random.Random(0)) == 0
