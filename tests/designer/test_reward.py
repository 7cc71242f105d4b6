from __future__ import annotations

import math

import numpy as np
import pytest

from spade_jax.designer import reward
from spade_jax.designer.reward import PAPER, STRICT


def binomial(n: int, p: float = 0.5) -> list[float]:
    return [math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)]


def pay(regret, win_rate, config, *, scale=0.15, dependence=None, solvable=True):
    return reward.designer_reward(
        regret, win_rate, scale=scale, dependence=dependence, solvable=solvable, config=config
    )


def test_paired_regret_by_hand():
    # d = 1, 0, 1, 1, -1, 1, 0, 1: mean 4/8; sum d^2 = 6, so var = (6 - 8/4) / 7 = 4/7, SE = sqrt(4/7/8).
    plain = np.array([0, 1, 0, 0, 1, 0, 0, 0], float)
    hinted = np.array([1, 1, 1, 1, 0, 1, 0, 1], float)
    got = reward.regret(plain, hinted, STRICT)
    assert got.mean == pytest.approx(0.5)
    assert got.se == pytest.approx(math.sqrt(4 / 56))
    assert (got.pairs, got.enough) == (8, True)


def test_unpaired_regret_by_hand():
    # plain 0 1 0 0: var 1/4; hinted 1 1 1 0: var 1/4; SE = sqrt((1/4 + 1/4) / 4).
    got = reward.regret(np.array([0, 1, 0, 0.0]), np.array([1, 1, 1, 0.0]), PAPER)
    assert got.mean == pytest.approx(0.5)
    assert got.se == pytest.approx(math.sqrt(1 / 8))
    assert got.enough


def test_pairing_cuts_the_standard_error_of_correlated_arms():
    rng = np.random.default_rng(0)
    easy = rng.random(4000)
    plain, hinted = (rng.random(4000) < easy).astype(float), (rng.random(4000) < easy).astype(float)
    ratio = reward.regret(plain, hinted, STRICT).se / reward.regret(plain, hinted, PAPER).se
    # Var p = 1/4, covariance Var(U(0,1)) = 1/12: sqrt(1 - 1/3) = .816.
    assert ratio == pytest.approx(math.sqrt(2 / 3), abs=0.02)


def test_void_plays_drop_their_pair_and_too_few_pairs_give_no_gradient():
    plain, hinted = np.zeros(9), np.ones(9)
    plain[0], hinted[1] = np.nan, np.nan
    got = reward.regret(plain, hinted, STRICT)
    assert (got.pairs, got.enough, got.mean) == (7, False, 1.0)
    empty = reward.regret(np.array([np.nan]), np.array([1.0]), PAPER)
    assert (empty.pairs, empty.enough) == (0, False)
    assert math.isnan(empty.mean) and math.isnan(empty.se)
    assert math.isnan(reward.regret(np.array([0.0]), np.array([1.0]), PAPER).se)


def test_unpaired_arms_are_an_error():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        reward.regret(np.zeros(2), np.zeros(3))


def test_null_regret_is_centred_and_keeps_the_magnitude():
    rng = np.random.default_rng(1)
    plain, hinted = np.zeros(16), np.ones(16)
    nulls = np.array([reward.null_regret(plain, hinted, rng) for _ in range(2000)])
    assert abs(nulls.mean()) < 4 * 0.25 / math.sqrt(2000)  # SD of one null is 1/sqrt(16)
    assert nulls.std() == pytest.approx(0.25, rel=0.1)
    assert math.isnan(reward.null_regret(np.array([np.nan]), np.zeros(1), rng))


def test_scale_and_shares():
    assert reward.regret_scale(np.array([0.1, 0.2, 0.4]), STRICT) == pytest.approx(0.4)
    assert reward.regret_scale(np.array([0.01, 0.02, np.nan]), STRICT) == 0.15
    assert reward.regret_scale(np.array([0.9]), PAPER) == 0.15
    assert reward.regret_scale(np.array([]), STRICT) == 0.15
    assert reward.negative_share(np.array([-0.1, 0.0, 0.2, 0.3])) == 0.25
    assert reward.saturated_share(np.array([-0.1, 0.0, 0.2, 0.3]), 0.2) == 0.5
    assert math.isnan(reward.negative_share(np.array([])))


@pytest.mark.parametrize(
    ("win_rate", "expected"),
    [(0.0, 0.0), (0.15, 0.0), (0.275, 0.5), (0.35, 0.8), (0.4, 1.0), (0.5, 1.0), (0.6, 1.0), (0.725, 0.5), (0.85, 0.0)],
)
def test_plateau(win_rate, expected):
    assert reward.plateau(win_rate) == pytest.approx(expected)


def test_seed_dependence_by_hand():
    # Half the seeds free, half impossible, twice each: m = 1 1 0 0, p(1-p) = 1/4, sample
    # variance 1/3 > 1/4, nothing within seeds: clipped to 1.
    assert reward.seed_dependence([0, 0, 1, 1, 2, 2, 3, 3], [1, 1, 1, 1, 0, 0, 0, 0]) == 1.0
    # Every seed once won, once lost: no spread between seeds, clipped to 0.
    assert reward.seed_dependence([0, 0, 1, 1], [1, 0, 0, 1]) == 0.0
    # m = 3/4, 1/4 of four plays: p = 1/2; sample variance 1/8; within (3/16) / 3 = 1/16; (1/8 - 1/16) / (1/4) = 1/4.
    assert reward.seed_dependence([0] * 4 + [1] * 4, [1, 1, 1, 0, 0, 0, 1, 0]) == pytest.approx(0.25)


def test_seed_dependence_needs_repeats_and_both_outcomes():
    assert reward.seed_dependence([0, 1, 2, 3], [1, 0, 1, 0]) is None
    assert reward.seed_dependence([0, 0, 1, 2], [1, 0, 1, 0]) is None
    assert reward.seed_dependence([0, 0, 1, 1], [1, 1, 1, 1]) is None
    assert reward.seed_dependence([], []) is None
    # Seeds played once are left out, not mixed in.
    assert reward.seed_dependence([0, 0, 1, 1, 7], [1, 0, 0, 1, 1]) == 0.0


def test_seed_dependence_of_fair_coins_is_small_on_average():
    rng = np.random.default_rng(2)
    seeds = np.repeat(np.arange(16), 4)
    values = [reward.seed_dependence(seeds, rng.random(64) < 0.5) for _ in range(300)]
    assert np.mean(values) < 0.06  # the naive variance of means would say 1/4


def test_paper_reward_by_hand():
    assert pay(0.15, 0.5, PAPER) == pytest.approx(1.0)
    assert pay(0.075, 0.275, PAPER) == pytest.approx(0.4 * 0.5 + 0.6 * 0.5)
    assert pay(-0.3, 0.5, PAPER) == pytest.approx(0.6)  # a hint that harms costs nothing


def test_strict_reward_by_hand():
    assert pay(0.15, 0.5, STRICT, scale=0.3) == pytest.approx(0.4 * 0.5 + 0.6)
    assert pay(-0.15, 0.5, STRICT, scale=0.3) == pytest.approx(-0.4 * 0.5 + 0.6)
    assert pay(-9.0, 0.0, STRICT) == pytest.approx(-0.4)
    assert pay(0.15, 0.5, STRICT, dependence=0.25) == pytest.approx(0.4 + 0.6 * 0.75)
    assert pay(0.15, 0.5, STRICT, solvable=False) == 0.5
    assert pay(0.0, 0.275, STRICT, solvable=False) == pytest.approx(0.3)


# ---- what is known to be wrong with the published reward ----


def test_noise_alone_pays_a_third_of_the_regret_term_in_the_paper():
    # True regret 0, p = 1/2, 16 unpaired plays an arm: SE sqrt(2 * (1/4) / 16) = .177 > .15.
    weights = binomial(16)
    paid = raw = 0.0
    for i, wi in enumerate(weights):
        for j, wj in enumerate(weights):
            difference = (i - j) / 16
            paid += wi * wj * (pay(difference, 0.0, PAPER) / reward.REGRET_WEIGHT)
            raw += wi * wj * (pay(difference, 0.0, STRICT, scale=2 * math.sqrt(1 / 32)) / reward.REGRET_WEIGHT)
    assert paid == pytest.approx(0.34, abs=0.015)
    assert raw == pytest.approx(0.0, abs=1e-12)  # without the floor noise earns nothing


def test_a_coin_flip_gets_nearly_the_whole_plateau_in_the_paper():
    # Over a window of 4 x 16 plays the plateau averages above .95 for an environment that
    # ignores the action; only the regret term tells it from a good one.
    expected = sum(w * reward.plateau(k / 64) for k, w in enumerate(binomial(64)))
    assert 0.95 < expected < 1.0


def test_half_free_half_impossible_gets_the_full_plateau_in_the_paper_and_none_in_ours():
    seeds, won = np.repeat(np.arange(16), 4), np.repeat(np.arange(16) < 8, 4)
    dependence = reward.seed_dependence(seeds, won)
    assert pay(0.0, 0.5, PAPER, dependence=dependence) == pytest.approx(0.6)
    assert pay(0.0, 0.5, STRICT, dependence=dependence) == pytest.approx(0.0)


def test_a_missing_hint_still_earns_the_plateau_in_the_paper():
    assert pay(0.0, 0.5, PAPER) == pytest.approx(0.6)


# ---- failures ----


def test_failure_rewards_are_ordered_as_in_the_table():
    assert reward.failure_reward("no_code") == -1.0
    assert reward.failure_reward("contract") == -0.8
    assert reward.failure_reward("crash") == reward.failure_reward("timeout") == reward.failure_reward("memory") == -0.6
    assert reward.failure_reward("nondeterministic") == -0.5
    assert reward.failure_reward("trivial") == reward.failure_reward("unsolvable") == -0.4
    assert reward.failure_reward("leak") == -0.3
    assert reward.failure_reward("duplicate") == -0.2
    assert reward.failure_reward("infrastructure") is None
    assert reward.failure_reward("no_code", PAPER) is None


def test_cap_of_the_invalid_share_by_hand():
    # Valid mass 1, invalid mass 3: capped at half means 1 and 1, a factor 1/3.
    capped = reward.cap_invalid_share(np.array([0.6, -0.4, -2.0, -1.0]), np.array([False, False, True, True]))
    np.testing.assert_allclose(capped, [0.6, -0.4, -2 / 3, -1 / 3])
    below = np.array([1.0, -1.0, -0.5])
    np.testing.assert_array_equal(reward.cap_invalid_share(below, np.array([False, False, True])), below)
    np.testing.assert_array_equal(reward.cap_invalid_share(np.array([-1.0, 1.0]), np.array([True, True])), [0.0, 0.0])
    kept = reward.cap_invalid_share(np.array([-1.0, 1.0]), np.array([True, True]), PAPER)
    np.testing.assert_array_equal(kept, [-1.0, 1.0])
    assert reward.cap_invalid_share(np.array([]), np.array([], bool)).shape == (0,)
