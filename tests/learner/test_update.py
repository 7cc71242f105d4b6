"""The update: accumulation, padding, several optimiser steps, failure; and the supervised step."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spade_jax.learner import partitioning
from spade_jax.learner import step as step_lib
from spade_jax.learner.batch import BucketConfig, pack
from spade_jax.learner.objective import ObjectiveConfig
from spade_jax.learner.state import init_state
from spade_jax.learner.step import UpdateConfig, make_update
from spade_jax.learner.supervised import make_supervised_step
from spade_jax.policy import Decoder, DecoderConfig
from spade_jax.structs import Trajectory

V, LONGEST = 16, 12
MODEL = Decoder(
    DecoderConfig(vocab_size=V, embed_dim=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=12)
)
RATE = 0.5
ONE_BATCH = BucketConfig(lengths=(LONGEST,), tokens_per_micro_batch=LONGEST * 24)
BUCKETS = BucketConfig(lengths=(6, LONGEST), tokens_per_micro_batch=LONGEST * 2)


@functools.cache
def mesh():
    return partitioning.make_mesh()


@functools.cache
def build(**kwargs):
    objective = ObjectiveConfig(aggregation=kwargs.pop("aggregation", "token_mean"), constant_length=20)
    return make_update(MODEL, optax.sgd(RATE), mesh(), UpdateConfig(objective, chunk=4, **kwargs))


@functools.cache
def initial():
    """Plain SGD, so that a difference of parameters is a gradient."""
    return init_state(MODEL, optax.sgd(RATE), mesh(), seed=0)


@jax.jit
def copy(state):
    return jax.tree.map(jnp.copy, state)


def fresh():
    """The initial state, for an update to consume."""
    return copy(initial())


def stacks(trajectories, advantages, minibatches=1):
    return pack(trajectories, advantages, BUCKETS, minibatches=minibatches)[0]


def problem(n=10):
    rng = np.random.default_rng(0)
    out = []
    for i in range(n):
        length = int(rng.integers(3, LONGEST + 1))
        mask = np.arange(length) >= 1 + i % 2
        logp = np.where(mask, rng.normal(-2.8, 0.2, length), 0).astype(np.float32)
        tokens = rng.integers(0, V, length).astype(np.int32)
        out.append(Trajectory(tokens, mask, logp, i % 2, 0, 0.0, temperature=0.7 + 0.1 * (i % 3), weight=1 + i % 3))
    return out, rng.normal(size=n).astype(np.float32)


def params_after(update, minibatches):
    state, metrics = update(fresh(), minibatches)
    return jax.device_get(state.params), metrics


def assert_same(a, b, atol=2e-6):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol, rtol=1e-5), a, b)


def plain_gradient(params, trajectories, advantages):
    """token_mean at rho = 1, one row at a time, without batches, chunks or clips."""

    @jax.jit
    @jax.value_and_grad
    def row_loss(params, tokens, mask, mu, temperature, scale):
        hidden, _ = MODEL.apply({"params": params}, tokens[None], jnp.arange(LONGEST)[None])
        logits = MODEL.apply({"params": params}, hidden, method="head")[0] / temperature
        logp = jax.nn.log_softmax(logits)[jnp.arange(LONGEST - 1), tokens[1:]]
        frozen = jax.lax.stop_gradient(logp)
        weight = jnp.minimum(jnp.exp(frozen - mu[1:]), 2.0)
        return -jnp.sum(jnp.where(mask[1:], weight * jnp.exp(logp - frozen) * scale, 0.0))

    tokens = sum(t.loss_mask[1:].sum() for t in trajectories)
    total = (0.0, jax.tree.map(np.zeros_like, params))
    for t, a in zip(trajectories, advantages, strict=True):
        padded = [np.pad(x, (0, LONGEST - len(t.tokens))) for x in (t.tokens, t.loss_mask, t.behaviour_logp)]
        total = jax.tree.map(lambda x, y: x + y / tokens, total, row_loss(params, *padded, t.temperature, a * t.weight))
    return total


def test_gradient_variance_is_that_of_the_micro_batches():
    trajectories, advantages = problem()
    pairs = BucketConfig(lengths=(LONGEST,), tokens_per_micro_batch=LONGEST * 2)
    params = jax.device_get(fresh().params)
    # Rows are dealt in turn to five micro-batches of two: their undivided gradients, and the tokens that divide them.
    grads, tokens = [], []
    for i in range(5):
        rows = trajectories[i::5]
        tokens.append(sum(int(t.loss_mask[1:].sum()) for t in rows))
        mean = plain_gradient(params, rows, advantages[i::5])[1]
        grads.append(np.concatenate([np.ravel(x) for x in jax.tree.leaves(mean)]) * tokens[-1])
    whole = np.sum(grads, axis=0)
    spread = sum(g @ g / n for g, n in zip(grads, tokens, strict=True)) - whole @ whole / sum(tokens)
    _, metrics = params_after(build(), pack(trajectories, advantages, pairs)[0])
    np.testing.assert_allclose(metrics["learner/grad_variance"], spread / (4 * sum(tokens)), rtol=1e-4)
    _, metrics = params_after(build(), pack(trajectories, advantages, ONE_BATCH)[0])
    assert "learner/grad_variance" not in metrics  # one micro-batch says nothing


def test_update_follows_the_plain_gradient():
    trajectories, advantages = problem()
    before = jax.device_get(fresh().params)
    loss, grads = plain_gradient(before, trajectories, advantages)
    after, metrics = params_after(build(), stacks(trajectories, advantages))
    assert_same(after, jax.tree.map(lambda p, g: p - RATE * g, before, grads))
    np.testing.assert_allclose(metrics["learner/loss"], loss, rtol=1e-5)
    np.testing.assert_allclose(metrics["learner/grad_norm"], optax.global_norm(grads), rtol=1e-5)


def test_buckets_and_accumulation_equal_one_big_batch():
    trajectories, advantages = problem(20)
    update = build(aggregation="sequence_mean")
    one, one_metrics = params_after(update, pack(trajectories, advantages, ONE_BATCH)[0])
    split = stacks(trajectories, advantages)
    lengths = [s.batch.tokens.shape[2] for s in split[0]]
    assert set(lengths) == {6, LONGEST} and lengths.count(LONGEST) > 1  # more than one stack can hold
    many, many_metrics = params_after(update, split)
    assert_same(one, many)
    for name, value in one_metrics.items():
        np.testing.assert_allclose(many_metrics[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_padding_changes_nothing():
    trajectories, advantages = problem(20)
    base = stacks(trajectories, advantages)
    assert any((stack.batch.weight[: stack.count] == 0).any() for stack in base[0])
    rng = np.random.default_rng(1)
    padded = []
    for stack in base[0]:
        b, empty = stack.batch, stack.batch.weight == 0
        spoilt = b._replace(
            tokens=np.where(empty[..., None], rng.integers(0, V, b.tokens.shape), b.tokens).astype(np.int32),
            loss_mask=b.loss_mask | empty[..., None],
            behaviour_logp=np.where(empty[..., None], np.nan, b.behaviour_logp),
            advantage=np.where(empty, np.nan, b.advantage),
        )
        padded.append(stack._replace(batch=spoilt))
    (want, want_metrics), (got, got_metrics) = params_after(build(), base), params_after(build(), [padded])
    assert_same(want, got, atol=0)
    assert want_metrics == got_metrics


def test_one_step_needs_no_old_policy():
    trajectories, advantages = problem()
    _, metrics = params_after(build(), stacks(trajectories, advantages))
    assert metrics["learner/ratio"] == pytest.approx(1.0, abs=1e-6)
    assert metrics["learner/kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["learner/logp_gap_max"] > metrics["learner/logp_gap_mean"] > 0


def test_later_steps_use_the_policy_from_before_the_update():
    trajectories, advantages = problem()
    minibatches = stacks(trajectories, advantages, minibatches=2)
    _, first = params_after(build(), minibatches[:1])
    state, both = build()(fresh(), minibatches)
    assert state.step == 1
    assert both["learner/ratio"] != pytest.approx(1.0, abs=1e-6)
    assert both["learner/tokens"] > first["learner/tokens"]


def test_trusting_exact_sampler_logps_changes_nothing():
    trajectories, advantages = problem()
    params = fresh().params

    @jax.jit
    def score(tokens, temperature):
        hidden, _ = MODEL.apply({"params": params}, tokens[None], jnp.arange(LONGEST)[None])
        logits = MODEL.apply({"params": params}, hidden, method="head")[0] / temperature
        return jax.nn.log_softmax(logits)[jnp.arange(LONGEST - 1), tokens[1:]]

    exact = []
    for t in trajectories:
        n = len(t.tokens)
        logp = np.zeros(n, np.float32)
        logp[1:] = score(np.pad(t.tokens, (0, LONGEST - n)), t.temperature)[: n - 1]
        exact.append(dataclasses.replace(t, behaviour_logp=np.where(t.loss_mask, logp, 0)))
    minibatches = stacks(exact, advantages, minibatches=2)
    recomputed, a = params_after(build(), minibatches)
    trusted, b = params_after(build(trust_behaviour_logp=True), minibatches)
    assert_same(recomputed, trusted)
    assert a["learner/logp_gap_max"] < 1e-5 and b["learner/logp_gap_max"] < 1e-5
    assert a["learner/clip_share"] == b["learner/clip_share"] > 0


def test_no_rows_only_advance_the_step():
    state, metrics = build()(fresh(), pack([], [], BUCKETS)[0])
    assert (state.step, metrics["learner/tokens"], metrics["learner/grad_norm"]) == (1, 0, 0)
    assert_same(jax.device_get(state.params), jax.device_get(fresh().params), atol=0)


def test_non_finite_step_is_named_and_not_applied():
    trajectories, advantages = problem()
    state = build()(fresh(), [])[0]
    before = jax.device_get(state.params)
    with pytest.raises(FloatingPointError, match="update 1, optimiser step 0: loss nan"):
        build()(state, stacks(trajectories, advantages * np.nan))
    assert_same(jax.device_get(state.params), before, atol=0)


def test_same_inputs_same_bits():
    trajectories, advantages = problem()
    minibatches = stacks(trajectories, advantages)
    a, _ = params_after(build(), minibatches)
    b, _ = params_after(build(), minibatches)
    assert_same(a, b, atol=0)


def test_state_is_donated():
    trajectories, advantages = problem()
    state = fresh()
    embedding = state.params["embedding"]
    build()(state, stacks(trajectories, advantages))
    assert embedding.is_deleted()


def test_supervised_step_by_hand_and_in_micro_batches():
    rng = np.random.default_rng(0)
    tokens, weights = rng.integers(0, V, (4, 6)), rng.random((4, 6)).astype(np.float32)
    before = jax.device_get(fresh().params)

    @jax.jit
    @jax.value_and_grad
    def loss(params):
        hidden, _ = MODEL.apply({"params": params}, tokens, jnp.broadcast_to(jnp.arange(6), (4, 6)))
        logp = jax.nn.log_softmax(MODEL.apply({"params": params}, hidden, method="head"))
        picked = jnp.take_along_axis(logp[:, :-1], tokens[:, 1:, None], axis=-1)[..., 0]
        return -jnp.sum(picked * weights[:, 1:]) / weights[:, 1:].sum()

    value, grads = loss(before)
    want = jax.tree.map(lambda p, g: p - RATE * g, before, grads)
    for micro_batches in (1, 2):
        step = make_supervised_step(MODEL, optax.sgd(RATE), mesh(), micro_batches=micro_batches, chunk=4)
        state, metrics = step(fresh(), tokens, weights)
        assert_same(jax.device_get(state.params), want)
        np.testing.assert_allclose(metrics["loss"], value, rtol=1e-5)
        np.testing.assert_allclose(metrics["tokens"], weights[:, 1:].sum(), rtol=1e-6)
        assert state.step == 1
    with pytest.raises(ValueError, match="do not split into micro_batches=2"):
        step(state, tokens[:3], weights[:3])


def test_every_program_is_launched_under_the_lock(monkeypatch):
    """A sampler's come before or after it on all devices; between two of them it has its turn."""

    class Lock:
        held, launches = False, 0

        def __enter__(self):
            assert not self.held
            self.held = True

        def __exit__(self, *error):
            self.held = False
            self.launches += 1

    lock = Lock()
    make = step_lib.make_accumulate

    def watched(*args, **kwargs):
        accumulate = make(*args, **kwargs)

        def launch(*args):
            assert lock.held
            return accumulate(*args)

        return launch

    monkeypatch.setattr(step_lib, "make_accumulate", watched)
    update = make_update(MODEL, optax.sgd(RATE), mesh(), UpdateConfig(chunk=4), launching=lock)
    minibatches = stacks(*problem())
    update(fresh(), minibatches)
    # Of one minibatch: a zero gradient, each bucket's part, its norm, the optimiser's step, the step's number.
    assert lock.launches == 4 + len(minibatches[0]) and not lock.held
