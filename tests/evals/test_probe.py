import dataclasses

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.envs.bundled import held_out_probe
from spade_jax.evals import probe as probe_lib


def test_metrics_by_suite_and_family():
    probe = held_out_probe(2)
    won = [b.suite == "family" or (b.suite, b.family.name) == ("instance", "number_search") for b in probe]
    episodes = [
        structs.Episode("", "agent", "plain", 0, 0, (), 0.0, structs.SUCCESS if w else structs.FAILURE) for w in won
    ]
    log = probe_lib.probe_metrics(probe, episodes)
    assert log["eval/probe/all"] == pytest.approx(np.mean(won))
    assert log["eval/probe/family"] == 1.0
    assert log["eval/probe/range"] == 0.0
    assert log["eval/probe/instance"] == pytest.approx(1 / 13)
    assert log["eval/family/letter_search"] == 1.0
    assert log["eval/range/number_search"] == 0.0
    assert log["eval/instance/number_search"] == 1.0


def test_void_plays_count_for_nothing():
    probe = held_out_probe(2)
    statuses = [structs.SUCCESS, structs.VOID, structs.TRUNCATED] + [structs.FAILURE] * (len(probe) - 3)
    episodes = [structs.Episode("", "agent", "plain", 0, 0, (), 0.0, status) for status in statuses]
    log = probe_lib.probe_metrics(probe, episodes)
    assert log["eval/probe/all"] == pytest.approx(1 / (len(probe) - 1))
    assert log["eval/probe/void"] == pytest.approx(1 / len(probe))
    nothing = probe_lib.probe_metrics(probe, [dataclasses.replace(e, status=structs.VOID) for e in episodes])
    assert np.isnan(nothing["eval/probe/all"])
    assert nothing["eval/probe/void"] == 1.0


def test_bootstrap_leaves_void_plays_out():
    values = np.full((3, 10), 0.25)
    values[0, :9] = values[2] = np.nan
    assert probe_lib.bootstrap_interval(values, rng=np.random.default_rng(0), samples=100) == (0.25, 0.25)
    assert np.isnan(probe_lib.bootstrap_interval(np.full((2, 3), np.nan), rng=np.random.default_rng(0))).all()


def test_bootstrap_of_a_constant_is_that_constant():
    low, high = probe_lib.bootstrap_interval(np.full((3, 10), 0.25), rng=np.random.default_rng(0), samples=100)
    assert (low, high) == (0.25, 0.25)


def test_bootstrap_covers_the_spread_of_runs_and_of_episodes():
    """Runs alone differ: resampling 2 runs of values 0 and 1 gives means 0, .5 and 1."""
    values = np.repeat([[0.0], [1.0]], 50, axis=1)
    assert probe_lib.bootstrap_interval(values, rng=np.random.default_rng(0), samples=500) == (0.0, 1.0)
    # Episodes alone differ: the standard error of a mean of 400 coin flips is .025.
    flips = np.tile(np.arange(400) % 2, (3, 1)).astype(float)
    low, high = probe_lib.bootstrap_interval(flips, rng=np.random.default_rng(0), samples=2000)
    assert low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.01)
    assert high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.01)


def test_comparison_by_hand():
    """One void play at the start, one after training: instances 0 and 1 of run 1 give no gain."""
    start_N = np.array([np.nan, 0.0, 0.0, 1.0])
    trained_RxN = np.array([[1.0, 0.0, 1.0, 1.0], [1.0, np.nan, 1.0, 0.0]])
    row = probe_lib.compare(start_N, trained_RxN)
    assert row["start"] == pytest.approx(1 / 3)
    assert row["trained"] == pytest.approx(5 / 7)
    assert row["gain"] == pytest.approx((0 + 1 + 0 + 1 - 1) / 5)
    assert row["void"] == pytest.approx(2 / 12)
    assert row["interval"][0] <= row["gain"] <= row["interval"][1]
