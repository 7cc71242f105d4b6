"""The canaries, judged by the real gate and by a gate that is out of order."""

import dataclasses
import logging
import random

import pytest

from spade_jax.designer import canaries, gate
from spade_jax.rollout import regenerate
from spade_jax.sandbox import Pool


@pytest.fixture(scope="module")
def pool():
    with Pool(max_live=16) as pool:
        yield pool


@pytest.mark.parametrize("seed", range(6))
def test_the_gate_judges_them_right(pool, seed, caplog):
    assert regenerate._send_canaries(pool, gate.DEFAULT_CONFIG, random.Random(seed)) == 0
    assert not caplog.records


def test_they_are_not_constant():
    drawn = [canaries.draw(random.Random(seed)) for seed in range(8)]
    assert [canary.name for canary in drawn[0]] == ["leaky", "coin flip", "solved", "sound"]
    assert len({canary.source for canaries_drawn in drawn for canary in canaries_drawn}) == 32


def test_a_gate_out_of_order_is_noticed(pool, monkeypatch, caplog):
    monkeypatch.setattr(gate.sealed, "_readable", lambda *_: "")
    with caplog.at_level(logging.WARNING):
        assert regenerate._send_canaries(pool, gate.DEFAULT_CONFIG, random.Random(0)) == 1
    (record,) = caplog.records
    assert "the leaky canary is sound where leak was due" in record.getMessage()


def test_checks_that_are_left_out_have_no_canary(pool):
    paper = dataclasses.replace(gate.DEFAULT_CONFIG, checks=("parse", "contract"))
    assert regenerate._send_canaries(pool, paper, random.Random(0)) == 0
