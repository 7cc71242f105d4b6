"""The update of a policy with experts: its load is measured, and the balance loss moves the router alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spade_jax.learner import partitioning
from spade_jax.learner.batch import BucketConfig, pack
from spade_jax.learner.objective import ObjectiveConfig, Sums
from spade_jax.learner.state import init_state
from spade_jax.learner.step import UpdateConfig, make_update
from spade_jax.policy import Decoder, DecoderConfig
from spade_jax.runtime.metrics import describe
from spade_jax.structs import Trajectory

LENGTH, E = 8, 4
MODEL = Decoder(
    DecoderConfig(
        vocab_size=16, embed_dim=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=6, num_experts=E,
        experts_per_token=2,
    )
)  # fmt: skip


def test_balance_loss_and_metrics():
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) >= 2
    rows = [
        Trajectory(rng.integers(0, 16, LENGTH).astype(np.int32), mask, np.zeros(LENGTH, np.float32), 0, 0, 0.0)
        for _ in range(3)
    ]
    mesh = partitioning.make_mesh()
    buckets = BucketConfig(lengths=(LENGTH,), tokens_per_micro_batch=LENGTH * 3)
    minibatches, _ = pack(rows, np.zeros(3, np.float32), buckets, minibatches=1)  # no advantage: only balance is left
    optimizer = optax.sgd(1.0)
    after = {}
    for weight in (0.0, 0.5):
        state = init_state(MODEL, optimizer, mesh, seed=0)
        before = jax.device_get(state.params)
        update = make_update(MODEL, optimizer, mesh, UpdateConfig(ObjectiveConfig(), chunk=4, router_balance=weight))
        state, metrics = update(state, minibatches)
        after[weight] = jax.device_get(state.params)
    jax.tree.map(np.testing.assert_array_equal, after[0.0], before)
    moved = before["layers"]["mlp"]["router"] - after[0.5]["layers"]["mlp"]["router"]
    assert np.abs(moved).max() > 1e-5

    def balance(router):
        params = before | {"layers": before["layers"] | {"mlp": before["layers"]["mlp"] | {"router": router}}}
        tokens = np.stack([row.tokens for row in rows])
        at = jnp.broadcast_to(jnp.arange(LENGTH), tokens.shape)
        counted = jnp.broadcast_to(mask, tokens.shape)
        _, left = MODEL.apply({"params": params}, tokens, at, None, counted, mutable=["router"])
        (load,) = left["router"]["layers"]["mlp"]["load"]
        share, probability = load[:, 0] / counted.sum(), load[:, 1] / counted.sum()
        return jnp.mean(E * jnp.sum(jax.lax.stop_gradient(share) * probability, axis=-1)), share

    (value, share), gradient = jax.jit(jax.value_and_grad(balance, has_aux=True))(before["layers"]["mlp"]["router"])
    np.testing.assert_allclose(moved, 0.5 * gradient, atol=1e-6)
    assert metrics["learner/router_balance"] == pytest.approx(float(value), rel=1e-5)
    assert metrics["learner/router_max_load"] == pytest.approx(float(share.max()) * E, rel=1e-5)


def test_metrics_by_hand():
    assert "learner/router_balance" not in jax.device_get(Sums.zero()).metrics()
    load = np.array([[[4, 0], [3, 1]], [[2, 2], [2, 2]]], np.float32)  # 4 tokens, 2 layers, 2 experts
    metrics = jax.device_get(Sums.zero())._replace(router=load).metrics()
    assert metrics["learner/router_balance"] == pytest.approx((2 * 0.75 + 2 * 0.5) / 2)
    assert metrics["learner/router_max_load"] == 2.0
    assert all(map(describe, metrics))  # a run refuses to log what has no row
