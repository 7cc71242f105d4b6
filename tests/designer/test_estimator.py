"""The estimator of regret against plays whose true regret is known, and on plays of bundled families."""

from __future__ import annotations

import pathlib
import sys

import numpy as np
import pytest

from spade_jax.designer import reward
from spade_jax.designer.reward import PAPER, STRICT
from spade_jax.envs import families

sys.path.append(str(pathlib.Path(__file__).parents[1] / "envs"))

import family_checks  # noqa: E402 (found by the path above)

S = 16
T_975_15 = 2.131  # 97.5 % quantile of Student's t with 15 degrees of freedom


def windows(count, rng, gain):
    """float[count, S] plain and hinted returns: a seed is won with chance u, with the hint u + gain (1 - u)."""
    easy_NxS = rng.random((count, S))
    plain_NxS = (rng.random((count, S)) < easy_NxS).astype(float)
    hinted_NxS = (rng.random((count, S)) < easy_NxS + gain * (1 - easy_NxS)).astype(float)
    return plain_NxS, hinted_NxS


@pytest.mark.slow
@pytest.mark.parametrize("gain", [0.0, 0.6])
def test_unbiased_and_its_error_is_honest_over_100_000_draws(gain):
    """True regret is gain * E(1 - u) = gain / 2; raw, without the floor that would bias it."""
    count = 100_000
    plain_NxS, hinted_NxS = windows(count, np.random.default_rng(0), gain)
    measured = [reward.regret(plain, hinted, STRICT) for plain, hinted in zip(plain_NxS, hinted_NxS, strict=True)]
    mean_N = np.array([m.mean for m in measured])
    se_N = np.array([m.se for m in measured])
    spread = mean_N.std()
    assert mean_N.mean() == pytest.approx(gain / 2, abs=4 * spread / np.sqrt(count))
    assert np.sqrt(np.mean(se_N**2)) == pytest.approx(spread, rel=0.01)  # the variance estimate is unbiased too
    covered = np.mean(np.abs(mean_N - gain / 2) <= T_975_15 * se_N)
    assert 0.94 < covered < 0.97


def test_pairing_narrows_the_error_where_instances_differ_in_difficulty():
    """Var = 2 (1/4 - 1/12) / 16 paired and 2 (1/4) / 16 unpaired: the deviation is cut by 18 %."""
    plain_NxS, hinted_NxS = windows(20_000, np.random.default_rng(1), 0.0)
    paired = (hinted_NxS - plain_NxS).mean(axis=1).std()
    unpaired = (hinted_NxS - np.random.default_rng(2).permuted(plain_NxS)).mean(axis=1).std()
    assert paired / unpaired == pytest.approx(np.sqrt(2 / 3), abs=0.02)


def test_pairing_costs_nothing_on_scripted_plays_of_bundled_families():
    """Their instances are equally hard by design, so there is nothing to gain either: the ratio is 1 up to noise."""
    ratios = []
    for family in families.all_families():
        params, source = family_checks.program(family, "train", 0)
        cls = family_checks.build(source)
        plain, hinted = (
            np.array([family_checks.scripted(family, params, cls, seed, hinted=arm)[0] for seed in range(160)], float)
            for arm in (False, True)
        )
        ratios.append(reward.regret(plain, hinted, STRICT).se / reward.regret(plain, hinted, PAPER).se)
    assert np.mean(ratios) == pytest.approx(1.0, abs=0.02)
    assert max(ratios) < 1.15


def test_the_null_of_a_strong_hint_is_near_zero():
    rng = np.random.default_rng(3)
    plain_NxS, hinted_NxS = windows(5000, rng, 0.6)
    nulls = [reward.null_regret(plain, hinted, rng) for plain, hinted in zip(plain_NxS, hinted_NxS, strict=True)]
    assert np.mean(nulls) == pytest.approx(0.0, abs=4 * np.std(nulls) / np.sqrt(len(nulls)))
