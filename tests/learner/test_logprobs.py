"""Chunked log-probs against plain log_softmax."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.learner.logprobs import chunked_logprobs, model_logprobs
from spade_jax.policy import Decoder, DecoderConfig, init_params
from spade_jax.policy.products import product

B, T, D, V = 3, 11, 8, 17
ROOT = pathlib.Path(__file__).parents[2]


def problem():
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (B, T, D))
    weight = jax.random.normal(keys[1], (D, V))
    tokens = jax.random.randint(keys[2], (B, T), 0, V)
    return hidden, weight, tokens, jnp.array([0.6, 1.0, 2.0])


def plain(hidden, weight, tokens, temperature):
    logp = jax.nn.log_softmax(hidden @ weight / temperature[:, None, None])[:, :-1]
    picked = jnp.take_along_axis(logp, tokens[:, 1:, None], axis=-1)[..., 0]
    entropy = -jnp.sum(jnp.exp(logp) * logp, axis=-1)
    return jnp.pad(picked, ((0, 0), (1, 0))), jnp.pad(entropy, ((0, 0), (1, 0)))


@pytest.mark.parametrize("chunk", [1, 4, 11, 64])
def test_equals_log_softmax_with_gradients(chunk):
    hidden, weight, tokens, temperature = problem()
    coefficients = jax.random.normal(jax.random.key(1), (B, T))

    def loss(hidden, weight, fn):
        logp, entropy = fn(hidden, weight)
        return jnp.sum(logp * coefficients), (logp, entropy)

    def chunked(hidden, weight):
        return chunked_logprobs(lambda h: h @ weight, hidden, tokens, temperature, chunk=chunk)

    def whole(hidden, weight):
        return plain(hidden, weight, tokens, temperature)

    got = jax.jit(lambda h, w: jax.grad(loss, (0, 1), has_aux=True)(h, w, chunked))(hidden, weight)
    want = jax.jit(lambda h, w: jax.grad(loss, (0, 1), has_aux=True)(h, w, whole))(hidden, weight)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_chunks_without_a_wanted_token_are_passed_over():
    """Those wanted, and the gradients that they alone send back, are as if all were."""
    hidden, weight, tokens, temperature = problem()
    wanted = jnp.zeros((B, T), bool).at[0, 5].set(True).at[2, 7].set(True).at[1, 0].set(True)

    def loss(hidden, weight, asked):
        logp, entropy = chunked_logprobs(lambda h: h @ weight, hidden, tokens, temperature, asked, chunk=4)
        return jnp.sum(jnp.where(wanted, logp, 0.0)), (logp, entropy)

    measure = jax.jit(jax.grad(loss, (0, 1), has_aux=True))
    grads, (logp, entropy) = measure(hidden, weight, wanted)
    all_grads, (all_logp, all_entropy) = measure(hidden, weight, jnp.ones((B, T), bool))
    # Positions 4 to 7 predict tokens 5 to 8; no other chunk has a token that is wanted.
    for part, whole in ((logp, all_logp), (entropy, all_entropy)):
        np.testing.assert_array_equal(part[:, 5:9], whole[:, 5:9])
        assert not part[:, :5].any() and not part[:, 9:].any()
    for got, want in zip(grads, all_grads, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-6)


def test_by_hand():
    # Logits (0, log 3) at temperature 1: p = (1/4, 3/4). At temperature 1/2 they double: p = (1/10, 9/10).
    logits = jnp.broadcast_to(jnp.array([0.0, jnp.log(3.0)]), (2, 2, 2))
    logp, entropy = chunked_logprobs(lambda h: h, logits, jnp.array([[0, 1], [1, 0]]), jnp.array([1.0, 0.5]))
    np.testing.assert_allclose(logp, [[0, np.log(0.75)], [0, np.log(0.1)]], atol=1e-6)
    np.testing.assert_allclose(entropy, [[0, 0.5623351], [0, 0.3250830]], atol=1e-6)


def test_impossible_piece_gives_no_nan():
    logits = jnp.array([[[0.0, -jnp.inf, 0.0]] * 2])
    logp, entropy = chunked_logprobs(lambda h: h, logits, jnp.array([[0, 2]]))
    np.testing.assert_allclose(logp, [[0, np.log(0.5)]], atol=1e-6)
    np.testing.assert_allclose(entropy, [[0, np.log(2.0)]], atol=1e-6)


def test_entropy_carries_no_gradient_and_can_be_skipped():
    hidden, weight, tokens, temperature = problem()
    grad = jax.grad(lambda h: chunked_logprobs(lambda x: x @ weight, h, tokens, temperature)[1].sum())(hidden)
    np.testing.assert_array_equal(grad, 0)
    _, entropy = chunked_logprobs(lambda x: x @ weight, hidden, tokens, temperature, with_entropy=False)
    np.testing.assert_array_equal(entropy, 0)


HEADS = {
    "plain": lambda h, w: h @ w,
    "soft-capped": lambda h, w: 3 * jnp.tanh(h @ w / 3),
    "masked": lambda h, w: jnp.where(jnp.arange(V) % 5 == 2, -jnp.inf, h @ w),  # 2, 7, 12, which no target is
    "bfloat16": lambda h, w: product("btd,dv->btv", h.astype(jnp.bfloat16), w.astype(jnp.bfloat16)),
}


@pytest.mark.parametrize("heated", [True, False])
@pytest.mark.parametrize("name", HEADS)
def test_gradient_is_that_of_the_plain_formula(name, heated):
    """As jax derives it, the entropy in the loss as a constant, some tokens not in it."""
    hidden, weight, tokens, temperature = problem()
    tokens = jnp.where(tokens % 5 == 2, tokens + 1, tokens)
    wanted = jnp.zeros((B, T), bool).at[0, 2:4].set(True).at[2, 7].set(True)
    coefficients = jax.random.normal(jax.random.key(1), (B, T))
    head = HEADS[name]

    def chunked(hidden, weight):
        heat = temperature if heated else None
        return chunked_logprobs(lambda h: head(h, weight), hidden, tokens, heat, wanted, chunk=3)

    def whole(hidden, weight):
        logits = head(hidden, weight) / (temperature[:, None, None] if heated else 1.0)
        logp = jnp.where(jnp.isfinite(logits), jax.nn.log_softmax(logits), 0.0)  # no NaN of 0 times infinity below
        p = jax.nn.softmax(logits)
        picked = jnp.take_along_axis(logp, jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))[..., None], axis=-1)[..., 0]
        return tuple(jnp.roll(x, 1, axis=1) for x in (picked, -jnp.sum(p * logp, axis=-1)))

    def loss(hidden, weight, fn):
        logp, entropy = fn(hidden, weight)
        logp, entropy = (jnp.where(wanted, x, 0.0) for x in (logp, entropy))
        return jnp.sum(logp * jnp.exp(logp) * coefficients * jax.lax.stop_gradient(entropy)), (logp, entropy)

    got, want = (
        jax.jit(lambda h, w, fn=fn: jax.grad(loss, (0, 1), has_aux=True)(h, w, fn))(hidden, weight)
        for fn in (chunked, whole)
    )
    loose = 2e-2 if name == "bfloat16" else 1e-5  # jax's own gradient of such a product is rounded once for all chunks
    assert all(jnp.abs(x).max() > 0.1 for x in want[0])
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, atol=loose)


def test_a_head_that_is_frozen_costs_no_gradient():
    """Nor is there room for one: with adapters its matrix may be larger than all that is trained."""
    hidden, tokens = jnp.zeros((2, 64, 64)), jnp.zeros((2, 64), int)

    def loss(hidden, weight):
        return chunked_logprobs(lambda h: h @ weight, hidden, tokens, chunk=4)[0].sum()

    frozen, both = (
        jax.jit(jax.grad(loss, of)).lower(hidden, jnp.zeros((64, 4096))).compile().memory_analysis()
        for of in (0, (0, 1))
    )
    assert frozen.temp_size_in_bytes < 4 * 64 * 4096 / 2 < both.temp_size_in_bytes


def test_of_a_chunk_there_are_three_arrays_at_most():
    """Probabilities, the logits' gradient, and on a CPU its transpose for the product with the hidden states."""
    hidden, weight, tokens = jnp.zeros((4, 128, D)), jnp.zeros((D, 4096)), jnp.zeros((4, 128), int)

    def loss(hidden, weight):
        temperature, wanted = jnp.ones(4), jnp.ones((4, 128), bool)
        return chunked_logprobs(lambda h: h @ weight, hidden, tokens, temperature, wanted, chunk=32)[0].sum()

    stats = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, weight).compile().memory_analysis()
    assert stats.temp_size_in_bytes < 3.2 * (4 * 32 * 4096 * 4)


def test_logits_never_exist_whole():
    hidden, weight, tokens, temperature = jnp.zeros((4, 512, D)), jnp.zeros((D, 512)), jnp.zeros((4, 512), int), None

    def loss(h, w):
        return chunked_logprobs(lambda x: x @ w, h, tokens, temperature, chunk=32)[0].sum()

    stats = jax.jit(jax.grad(loss, (0, 1))).lower(hidden, weight).compile().memory_analysis()
    whole = 4 * 512 * 512 * 4
    assert stats.temp_size_in_bytes < whole / 2


def test_model_logprobs_are_causal():
    config = DecoderConfig(vocab_size=V, embed_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=16)
    model = Decoder(config)
    params = init_params(model, jax.random.key(0))
    tokens = jax.random.randint(jax.random.key(1), (1, T), 0, V)
    positions = jnp.arange(T)[None]
    score = jax.jit(lambda t: model_logprobs(model, params, t, positions, chunk=4)[0])
    base, changed = score(tokens), score(tokens.at[0, 6].set((tokens[0, 6] + 1) % V))
    np.testing.assert_allclose(base[0, :6], changed[0, :6], atol=1e-6)
    assert np.abs(base[0, 6:] - changed[0, 6:]).max() > 1e-3
    assert base[0, 0] == 0


_ON_A_MESH = """
import json, re
import jax, jax.numpy as jnp
from spade_jax.learner import partitioning, state
from spade_jax.learner.logprobs import model_logprobs
from spade_jax.policy import Decoder, DecoderConfig, init_params
from spade_jax.runtime import collectives

model = Decoder(DecoderConfig(
    vocab_size=512, embed_dim=16, num_layers=1, num_heads=2, num_kv_heads=2, head_dim=4, mlp_dim=8, tied_head=False,
    num_experts=4, experts_per_token=2,
))
mesh = partitioning.make_mesh(data=2, fsdp=2, tensor=2)
params = init_params(model, jax.random.key(0))
tokens = jax.random.randint(jax.random.key(1), (8, 16), 0, 512)
positions = jnp.broadcast_to(jnp.arange(16), (8, 16))

def loss(params, tokens, chunk):
    return model_logprobs(model, params, tokens, positions, chunk=chunk)[0].mean()

alone, found = jax.grad(loss)(params, tokens, 4), {}
shardings = state.param_shardings(model, mesh)
rows = partitioning.batch_sharding(mesh)
for chunk in (16, 2):
    grad = jax.jit(lambda p, t: jax.grad(loss)(p, t, chunk), in_shardings=(shardings, rows), out_shardings=shardings)
    with partitioning.activate(mesh):
        compiled = grad.lower(params, tokens).compile()
        grads = compiled(jax.device_put(params, shardings), jax.device_put(tokens, rows))
    text = compiled.as_text()
    counted, whole = collectives.count(text), re.findall(r"= [a-z0-9]+\\[8,16\\b.* all-[a-z]+\\(", text)
    gaps = jax.tree.map(lambda a, b: float(abs(jax.device_get(a) - b).max() / abs(b).max()), grads, alone)
    found[chunk] = [sum(one.sent for one in counted.values()), max(jax.tree.leaves(gaps)), whole]
print(json.dumps(found))
"""


@pytest.mark.slow
def test_on_a_mesh_the_head_is_sent_once_however_many_chunks_there_are_and_no_batch_as_a_whole():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    run = subprocess.run(
        [sys.executable, "-c", _ON_A_MESH], env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert run.returncode == 0, run.stderr[-3000:]
    (one, one_gap, whole), (eight, eight_gap, _) = json.loads(run.stdout).values()
    assert max(one_gap, eight_gap) < 2e-5  # of the largest element, in each parameter's gradient
    assert not whole  # rows x tokens of all devices, in the embedding's lookup or the router's choice
    # A device's part of the head, 512 / 2 x 16 floats, is 16 kB: once more in each chunk would be 7 times that or more.
    # What does grow are sums over the tensor axis, of a few floats for each token.
    assert eight - one < 8e3
