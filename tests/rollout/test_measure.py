import numpy as np
import pytest

from spade_jax import structs
from spade_jax.designer import reward
from spade_jax.rollout import measure


def episode(arm, index, value, status=structs.FAILURE, environment="e"):
    return structs.Episode(environment, structs.AGENT, arm, index, 10 + index, (), value, status)


EPISODES = [
    episode(structs.HINTED, 1, 1.0, structs.SUCCESS),
    episode(structs.PLAIN, 0, 0.0),
    episode(structs.HINTED, 0, 1.0, structs.SUCCESS),
    episode(structs.PLAIN, 1, 0.5),
    episode(structs.PLAIN, 2, 0.0, structs.VOID),
    episode(structs.HINTED, 2, 1.0, structs.SUCCESS),
]
CONFIG = reward.RewardConfig(
    paired=True,
    min_pairs=2,
    floor_regret=False,
    adaptive_scale=True,
    seed_variance_penalty=True,
    cap_unverified=True,
    failure_rewards=True,
    invalid_share_cap=0.5,
)


def test_plays_are_paired_by_seed_and_void_is_nan():
    (plays,) = measure.measure(["e"], EPISODES)
    np.testing.assert_array_equal(plays.seed_indices, [0, 1, 2])
    np.testing.assert_array_equal(plays.plain, [0.0, 0.5, np.nan])
    np.testing.assert_array_equal(plays.hinted, [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(plays.won, [0.0, 0.0, np.nan])
    assert plays.paired() == ([0, 1, 2], [0.0, 0.5, None], [1.0, 1.0, 1.0], [False, False, None])


def test_regret_statistics_by_hand():
    """d = (1, .5): mean .75, sd = sqrt(.125), SE = sqrt(.125 / 2) = .25; one environment, so that is the rollout's."""
    plays = measure.measure(["e"], EPISODES)
    statistics, log = measure.regret_statistics(plays, CONFIG, np.random.default_rng(0))
    assert statistics["e"]["regret"] == pytest.approx(0.75)
    assert statistics["e"]["regret_se"] == pytest.approx(0.25)
    assert statistics["e"]["win_rate"] == 0.0
    assert statistics["e"]["win_rate_hinted"] == 1.0
    assert log["designer/regret"] == pytest.approx(0.75)
    assert log["designer/regret_se"] == pytest.approx(0.25)
    # The null's variance is mean d^2 / S = (1 + .25) / 2 / 2.
    assert log["designer/regret_null_se"] == pytest.approx(np.sqrt(0.3125))
    assert log["designer/regret_null"] in [pytest.approx(v) for v in (0.75, 0.25, -0.25, -0.75)]
    assert log["designer/negative_share"] == 0.0
    # The scale is max(.15, 2 * .25), which .75 exceeds.
    assert log["designer/saturated_share"] == 1.0
    assert log["designer/learnable_share"] == 0.0


def test_two_environments_pool_their_standard_errors():
    other = [
        episode(e.arm, e.seed_index, e.episode_return, e.status, environment="f") for e in EPISODES if e.seed_index < 2
    ]
    plays = measure.measure(["e", "f"], EPISODES + other)
    _, log = measure.regret_statistics(plays, CONFIG, np.random.default_rng(0))
    assert log["designer/regret_se"] == pytest.approx(np.sqrt(2 * 0.25**2) / 2)


def test_nothing_measured_is_nan_not_zero():
    _, log = measure.regret_statistics([], CONFIG, np.random.default_rng(0))
    assert np.isnan(log["designer/regret"])
    assert np.isnan(log["designer/regret_se"])


def test_agent_metrics_leave_void_episodes_out():
    log = measure.agent_metrics(EPISODES)
    assert log["agent/win_rate"] == 0.0
    assert log["agent/win_rate_hinted"] == 1.0
    assert log["agent/return"] == pytest.approx(0.25)
    assert log["agent/void_share"] == pytest.approx(1 / 6)
