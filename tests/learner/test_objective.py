"""The clipped objective against numbers worked out by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.learner.objective import ObjectiveConfig, Sums, gradient_variance, policy_loss
from spade_jax.structs import Batch


def make_batch(mask, advantage, *, mu=None, weight=None, role=None, version=None):
    mask = np.asarray(mask, bool)
    B, T = mask.shape
    return Batch(
        tokens=np.zeros((B, T), np.int32),
        positions=np.broadcast_to(np.arange(T, dtype=np.int32), (B, T)),
        loss_mask=jnp.asarray(mask),
        behaviour_logp=np.zeros((B, T), np.float32) if mu is None else np.asarray(mu, np.float32),
        temperature=np.ones(B, np.float32),
        advantage=jnp.asarray(advantage, jnp.float32),
        role=jnp.asarray([0] * B if role is None else role, jnp.int32),
        version=np.asarray([0] * B if version is None else version, np.int32),
        weight=jnp.asarray([1.0] * B if weight is None else weight, jnp.float32),
    )


def one_token(rho, advantage, *, tis=1.0, reference=None, **config):
    """Loss sums of one token with the given ratio; index 0 of the row is never in the loss."""
    log_rho = np.log(rho)
    batch = make_batch([[False, True]], [advantage], mu=[[0.0, -np.log(tis)]])
    zero = np.zeros((1, 2), np.float32)
    return policy_loss(
        jnp.asarray([[0.0, log_rho]], jnp.float32),
        zero,
        zero,
        batch,
        ObjectiveConfig(**config),
        step=jnp.int32(0),
        reference_logp_BxT=None if reference is None else np.asarray([[0.0, reference]], np.float32),
    )


@pytest.mark.parametrize(
    ("rho", "advantage", "loss", "clipped"),
    [
        (1.1, 2.0, -2.2, 0),  # inside the range
        (1.5, 2.0, -2.56, 1),  # gain above 1 + high is cut: 1.28 * 2
        (0.5, 2.0, -1.0, 0),  # a loss of probability is never cut for A > 0
        (0.5, -2.0, 1.6, 1),  # cut at 1 - low: .8 * -2
        (1.5, -2.0, 3.0, 0),  # no upper cut for A < 0
        (1.5, 0.0, 0.0, 0),
    ],
)
def test_clip_branches(rho, advantage, loss, clipped):
    sums = one_token(rho, advantage, clip_low=0.2, clip_high=0.28)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-6)
    assert sums.clipped == clipped
    np.testing.assert_allclose(sums.ratio, rho, rtol=1e-6)


@pytest.mark.parametrize(("tis", "weight"), [(0.5, 0.5), (1.5, 1.5), (3.0, 2.0), (1e30, 2.0)])
def test_importance_weight_is_truncated(tis, weight):
    sums = one_token(1.0, 2.0, tis=tis, tis_cap=2.0)
    np.testing.assert_allclose(sums.loss, -2.0 * weight, rtol=1e-5)
    np.testing.assert_allclose(sums.gap_max, abs(np.log(tis)), rtol=1e-5)


def test_k3():
    # log(ref / pi) = log 2 - log 1.1: k3 = 2/1.1 - log(2/1.1) - 1 = .2203441.
    sums = one_token(1.1, 0.0, reference=np.log(2.0), kl_coefficient=0.5)
    np.testing.assert_allclose(sums.kl_reference, 0.2203441, rtol=1e-5)
    np.testing.assert_allclose(sums.loss, 0.1101720, rtol=1e-5)
    # KL(pi_old || pi) by k3: rho - log rho - 1 = 1.1 - .0953102 - 1.
    np.testing.assert_allclose(sums.kl, 0.0046898, rtol=1e-3)


def test_kl_needs_a_reference():
    with pytest.raises(ValueError, match="learner.kl_coefficient=0.5 needs reference parameters"):
        one_token(1.0, 1.0, kl_coefficient=0.5)


@pytest.mark.parametrize(
    ("aggregation", "loss", "normaliser"),
    [
        # Row 0: one token, A = 3; row 1: three tokens, A = -1; row 2: weight 0; rho = 1 throughout.
        ("token_mean", -3.0 + 3.0, 4),
        ("sequence_mean", -3.0 + 1.0, 2),
        ("constant_length", -3.0 + 3.0, 20),
    ],
)
def test_aggregations(aggregation, loss, normaliser):
    mask = [[0, 1, 0, 0], [1, 1, 1, 1], [0, 1, 1, 1]]  # the first entry of row 1 has no prediction
    batch = make_batch(mask, [3.0, -1.0, 50.0], weight=[1.0, 1.0, 0.0])
    zero = jnp.zeros((3, 4))
    config = ObjectiveConfig(aggregation=aggregation, constant_length=10)
    sums = policy_loss(zero, zero, zero, batch, config, step=jnp.int32(0))
    np.testing.assert_allclose(sums.loss, loss, atol=1e-6)
    assert (sums.normaliser, sums.tokens, sums.rows) == (normaliser, 4, 2)


def test_weights_multiply_the_loss_and_not_the_divisor():
    batch = make_batch([[0, 1], [0, 1]], [1.0, 1.0], weight=[1.0, 3.0], role=[0, 1])
    zero = jnp.zeros((2, 2))
    config = ObjectiveConfig(role_weight=(1.0, 2.0))
    sums = policy_loss(zero, zero, zero, batch, config, step=jnp.int32(0))
    np.testing.assert_allclose(sums.loss, -1.0 - 6.0)
    assert sums.normaliser == 2


def test_metrics():
    batch = make_batch([[0, 1, 1], [0, 1, 0]], [1.0, 1.0], mu=[[0, -0.5, 0.25], [0, 0, 9]], version=[1, 3])
    zero = jnp.zeros((2, 3))
    sums = policy_loss(zero, zero + 0.7, zero, batch, ObjectiveConfig(tis_cap=1.5), step=jnp.int32(4))
    metrics = sums.add(Sums.zero()).metrics()
    assert metrics["learner/tokens"] == 3
    np.testing.assert_allclose(metrics["learner/entropy"], 0.7, rtol=1e-6)
    np.testing.assert_allclose(metrics["learner/logp_gap_mean"], 0.25, rtol=1e-6)
    np.testing.assert_allclose(metrics["learner/logp_gap_max"], 0.5, rtol=1e-6)
    np.testing.assert_allclose(metrics["learner/staleness"], 2.0)
    assert metrics["learner/staleness_max"] == 3
    # Weights e^.5, cut at 1.5, and e^-.25; the third token was drawn by pi_old itself.
    np.testing.assert_allclose(metrics["learner/tis_weight"], (1.5 + np.exp(-0.25) + 1) / 3, rtol=1e-6)
    np.testing.assert_allclose(metrics["learner/tis_capped_share"], 1 / 3, rtol=1e-6)


def test_maxima_survive_adding():
    a = Sums.zero()._replace(gap_max=np.float32(3.0), gap=np.float32(3.0), staleness_max=np.float32(1.0))
    b = Sums.zero()._replace(gap_max=np.float32(2.0), gap=np.float32(2.0), staleness_max=np.float32(4.0))
    assert (a.add(b).gap_max, a.add(b).gap, a.add(b).staleness_max) == (3.0, 5.0, 4.0)


def test_gradient_variance_by_hand():
    """Gradients (2, 0) of 1 token and (0, 4) of 2: mean (2/3, 4/3), its variance (4/1 + 16/2 - 20/3) / 3."""
    parts = [Sums.zero()._replace(normaliser=n, squares=s / n, micro_batches=1.0) for n, s in ((1.0, 4.0), (2.0, 16.0))]
    norm = np.hypot(2 / 3, 4 / 3)
    np.testing.assert_allclose(gradient_variance(norm, parts[0].add(parts[1])), 16 / 9, rtol=1e-6)
    assert np.isnan(gradient_variance(2.0, parts[0])) and np.isnan(gradient_variance(0.0, Sums.zero()))


def test_gradient_variance_is_unbiased():
    """Micro-batches of unequal size, every unit drawn with mean (1, -2, 0) and covariance 4: the mean's is 12 / N."""
    rng, sizes, found = np.random.default_rng(0), (1, 2, 3, 6), []
    zero = jax.device_get(Sums.zero())  # in NumPy, which is faster on single numbers
    for _ in range(4000):
        drawn = [rng.normal([1.0, -2.0, 0.0], 2.0, (n, 3)).sum(axis=0) for n in sizes]
        total = zero
        for n, g in zip(sizes, drawn, strict=True):
            total = total.add(zero._replace(normaliser=float(n), squares=g @ g / n, micro_batches=1.0))
        found.append(gradient_variance(float(np.linalg.norm(np.sum(drawn, axis=0)) / sum(sizes)), total))
    assert abs(np.mean(found) - 12 / sum(sizes)) < 4 * np.std(found) / np.sqrt(len(found))


def test_gradient_stays_finite_where_a_probability_collapsed():
    batch = make_batch([[0, 1, 1]], [1.0])
    zero = jnp.zeros((1, 3))

    def loss(logp):
        return policy_loss(logp, zero, zero, batch, ObjectiveConfig(), step=jnp.int32(0)).loss

    grad = jax.grad(loss)(jnp.asarray([[jnp.nan, 500.0, 0.0]]))
    np.testing.assert_allclose(grad, [[0.0, 0.0, -1.0]])


def test_importance_weight_carries_no_gradient():
    batch = make_batch([[0, 1]], [1.0], mu=[[0.0, -0.2]])
    grad = jax.grad(lambda x: policy_loss(x, x, x, batch, ObjectiveConfig(), step=jnp.int32(0)).loss)(jnp.zeros((1, 2)))
    np.testing.assert_allclose(grad, [[0.0, -np.exp(0.2)]], rtol=1e-6)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"aggregation": "mean"}, "learner.aggregation='mean' is unknown"),
        ({"clip_low": 1.5}, "learner.clip_low=1.5"),
        ({"tis_cap": 0.0}, "learner.tis_cap=0.0"),
        ({"role_weight": (1.0,)}, "needs one weight for each role"),
    ],
)
def test_bad_config(kwargs, message):
    with pytest.raises(ValueError, match=message):
        ObjectiveConfig(**kwargs)
