"""Every estimator against numbers worked out by hand, and the recursion against a plain loop."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from spade_jax.learner import partitioning
from spade_jax.learner.advantage import estimate, estimate_on_hosts


def run(returns, groups, estimator, *, roles=None, valid=None, baselines=(0.0, 0.0), jit=True, **kwargs):
    n = len(returns)
    estimators = (estimator,) if isinstance(estimator, str) else estimator
    fn = functools.partial(estimate, estimators=estimators, num_groups=8, **kwargs)
    out = (jax.jit(fn) if jit else fn)(
        np.asarray(returns, np.float32),
        np.asarray(roles if roles is not None else [0] * n, np.int32),
        np.asarray(groups, np.int32),
        np.asarray(valid if valid is not None else [True] * n),
        np.asarray(baselines, np.float32),
    )
    return jax.device_get(out)


def test_zscore_by_hand():
    # Group 0: 1, 0, 1, 0 -> mean .5, sd .5. Group 3: 1, 2, 6 -> mean 3, sd sqrt(14/3) = 2.160247.
    out = run([1, 0, 1, 0, 1, 2, 6], [0, 0, 0, 0, 3, 3, 3], "group_zscore")
    np.testing.assert_allclose(out.advantage, [1, -1, 1, -1, -0.9258201, -0.46291, 1.3887301], rtol=1e-6)
    assert out.keep.all()


def test_mean_by_hand():
    out = run([1, 2, 6, -1], [1, 1, 1, 2], "group_mean")
    np.testing.assert_allclose(out.advantage, [-2, -1, 3, 0])
    assert out.keep.tolist() == [True, True, True, False]


def test_leave_one_out_by_hand():
    # 1 - (2 + 6)/2 = -3; 2 - 7/2 = -1.5; 6 - 3/2 = 4.5; alone in its group: 0, dropped.
    out = run([1, 2, 6, 0.7], [1, 1, 1, 2], "leave_one_out")
    np.testing.assert_allclose(out.advantage, [-3, -1.5, 4.5, 0], atol=1e-6)
    assert out.keep.tolist() == [True, True, True, False]


@pytest.mark.parametrize("estimator", ["group_zscore", "group_mean", "leave_one_out"])
def test_zero_variance_groups_are_dropped(estimator):
    # A third of .1 is not exact, and the mean of equal numbers may differ from them by rounding.
    out = run([0.1, 0.1, 0.1, 1.0, 0.0], [0, 0, 0, 1, 1], estimator)
    assert out.keep.tolist() == [False, False, False, True, True]
    np.testing.assert_array_equal(out.advantage[:3], 0)


def test_none_is_the_return_and_leaves_the_table():
    out = run([1, 0, -1, 2], [0, 1, 0, 1], "none", valid=[True, True, True, False], baselines=[0.5, 0.1])
    np.testing.assert_array_equal(out.advantage, [1, 0, -1, 0])
    assert out.keep.tolist() == [True, False, True, False]
    np.testing.assert_array_equal(out.baselines, np.float32([0.5, 0.1]))


def test_ema_by_hand():
    # b0: .5 -> A = 1 - .5 = .5, b = .9 * .5 + .1 = .55; then A = -1 - .55 = -1.55, b = .495 - .1 = .395.
    # b1: 0 -> A = 1, b = .1.
    out = run([1, 1, -1], [0, 1, 0], "ema", baselines=[0.5, 0.0], ema_decay=0.9)
    np.testing.assert_allclose(out.advantage, [0.5, 1.0, -1.55], rtol=1e-6)
    np.testing.assert_allclose(out.baselines, [0.395, 0.1], rtol=1e-6)


def test_ema_equals_the_recursion():
    rng = np.random.default_rng(0)
    n, table = 300, [0.3, -0.2, 0.0, 0.0]
    returns, groups, valid = rng.choice([-1, 0, 1], n), rng.integers(0, 3, n), rng.random(n) < 0.8
    out = run(returns, groups, "ema", valid=valid, baselines=table, ema_decay=0.95)
    want = []
    for r, g, v in zip(returns, groups, valid, strict=True):
        want.append(r - table[g] if v else 0.0)
        if v:
            table[g] = 0.95 * table[g] + 0.05 * r
    np.testing.assert_allclose(out.advantage, want, atol=1e-5)
    np.testing.assert_allclose(out.baselines, table, atol=1e-5)
    assert out.baselines[3] == 0.0


def test_ema_of_two_steps_equals_one_long_step():
    returns, groups = [1, -1, 1, 0, -1, -1], [0, 0, 1, 1, 0, 1]
    whole = run(returns, groups, "ema")
    first = run(returns[:2], groups[:2], "ema")
    second = run(returns[2:], groups[2:], "ema", baselines=first.baselines)
    np.testing.assert_allclose(whole.advantage, [*first.advantage, *second.advantage], atol=1e-7)
    np.testing.assert_allclose(whole.baselines, second.baselines, atol=1e-7)


def test_return_equal_to_its_baseline_is_dropped():
    out = run([0.5, 1.0], [0, 1], "ema", baselines=[0.5, 0.0])
    assert out.keep.tolist() == [False, True]


def test_roles_keep_to_their_own_groups_and_estimators():
    # Role 0 (agent) and role 1 (designer) both use group id 2.
    out = run([1, 0, 3, 5], [2, 2, 2, 2], ("group_zscore", "leave_one_out"), roles=[0, 0, 1, 1])
    np.testing.assert_allclose(out.advantage, [1, -1, -2, 2], rtol=1e-6)
    np.testing.assert_array_equal(out.baselines, 0)


@pytest.mark.parametrize("estimator", ["ema", "group_zscore", "group_mean", "leave_one_out"])
def test_invalid_rows_influence_nothing(estimator):
    full = run([1, np.nan, 0, 9, 1], [0, 0, 0, 7, 0], estimator, valid=[1, 0, 1, 0, 1])
    bare = run([1, 0, 1], [0, 0, 0], estimator)
    np.testing.assert_array_equal(full.advantage[[0, 2, 4]], bare.advantage)
    np.testing.assert_array_equal(full.advantage[[1, 3]], 0)
    assert not full.keep[[1, 3]].any()
    np.testing.assert_array_equal(full.baselines, bare.baselines)


@pytest.mark.parametrize("estimator", ["ema", "group_zscore", "group_mean", "leave_one_out"])
def test_jit_equals_no_jit(estimator):
    rng = np.random.default_rng(1)
    args = (rng.normal(size=40), rng.integers(0, 2, 40), estimator)
    for a, b in zip(run(*args), run(*args, jit=False), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_host_wrapper_pads_and_cuts():
    mesh = partitioning.make_mesh()
    rng = np.random.default_rng(2)
    returns, groups = rng.normal(size=11).astype(np.float32), rng.integers(0, 3, 11)
    plain = run(returns, groups, "leave_one_out")
    advantage, keep, table = estimate_on_hosts(
        mesh,
        returns,
        np.zeros(11),
        groups,
        np.ones(11),
        np.zeros(2, np.float32),
        estimators=("leave_one_out",),
        num_groups=8,
    )
    np.testing.assert_allclose(advantage, plain.advantage, atol=1e-6)
    np.testing.assert_array_equal(keep, plain.keep)
    assert table.shape == (2,)


def test_unknown_estimator():
    with pytest.raises(ValueError, match="learner.estimator='rloo' is unknown; use one of ema"):
        run([1.0], [0], "rloo")
