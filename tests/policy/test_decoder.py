"""The network: causality, one forward for training and decoding, scan against unrolled, meshes."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import (
    Decoder,
    DecoderConfig,
    attention,
    init_cache,
    init_params,
    logical_specs,
    split_layers,
    unrolled_params,
)
from spade_jax.policy.attention import Scores, causal_attention, fused_attention
from spade_jax.policy.decoder import RMSNorm
from spade_jax.policy.products import product
from spade_jax.policy.rope import apply_rope, rope_table

TINY = DecoderConfig(
    vocab_size=40, embed_dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=32
)
VARIANTS = {
    "plain": TINY,
    "qk_norm_untied": dataclasses.replace(TINY, qk_norm=True, tied_head=False),
    "one_kv_head": dataclasses.replace(TINY, num_kv_heads=1, rope_theta=1e5),
}


def make(config):
    model = Decoder(config)
    return model, init_params(model, jax.random.key(1))


def sequence(config, batch=2, length=12):
    tokens = jax.random.randint(jax.random.key(2), (batch, length), 0, config.vocab_size)
    return tokens, jnp.broadcast_to(jnp.arange(length), (batch, length))


@functools.partial(jax.jit, static_argnums=0)  # one operation at a time, each would be compiled alone
def logits_of(model, params, tokens, positions, cache=None):
    hidden, cache = model.apply({"params": params}, tokens, positions, cache)
    return model.apply({"params": params}, hidden, method="head"), cache


def test_future_tokens_have_no_gradient_into_the_past():
    model, params = make(TINY)
    tokens, positions = sequence(TINY, batch=1, length=9)
    model_u = Decoder(TINY, unrolled=True)

    @jax.jit
    @jax.grad
    def gradient_of(offset_TxD, t):
        # The offset enters through a vocabulary of one row per position.
        table = jnp.zeros((TINY.vocab_size, TINY.embed_dim)).at[:9].set(params["embedding"][tokens[0]] + offset_TxD)
        own = unrolled_params(params | {"embedding": table}, TINY.num_layers)
        hidden, _ = model_u.apply({"params": own}, jnp.arange(9)[None], positions)
        return jnp.sum(jnp.sin(hidden[0, t]))

    for t in (0, 4, 8):
        gradient = gradient_of(jnp.zeros((9, TINY.embed_dim)), t)
        reach = np.abs(np.asarray(gradient)).sum(-1)
        assert (reach[t + 1 :] == 0).all()
        assert (reach[: t + 1] > 0).all()


@pytest.mark.parametrize("name", VARIANTS)
def test_cached_decoding_equals_teacher_forcing(name):
    config = VARIANTS[name]
    model, params = make(config)
    tokens, positions = sequence(config)
    full, _ = logits_of(model, params, tokens, positions)
    cache = init_cache(config, 2, 16)
    first, cache = logits_of(model, params, tokens[:, :5], positions[:, :5], cache)
    parts = [first]
    for t in range(5, 12):
        part, cache = logits_of(model, params, tokens[:, t : t + 1], positions[:, t : t + 1], cache)
        parts.append(part)
    np.testing.assert_allclose(jnp.concatenate(parts, 1), full, atol=1e-5)


def test_unrolled_equals_scanned():
    model, params = make(TINY)
    tokens, positions = sequence(TINY)
    unrolled, own = Decoder(TINY, unrolled=True), unrolled_params(params, TINY.num_layers)
    full, _ = logits_of(model, params, tokens, positions)
    np.testing.assert_allclose(logits_of(unrolled, own, tokens, positions)[0], full, atol=1e-5)
    cache = init_cache(TINY, 2, 16)
    _, scanned = logits_of(model, params, tokens, positions, cache)
    cached, layers = logits_of(unrolled, own, tokens, positions, split_layers(cache))
    np.testing.assert_allclose(cached, full, atol=1e-5)
    for i, layer in enumerate(layers):
        np.testing.assert_allclose(layer.k, scanned.k[i], atol=1e-5)
        np.testing.assert_allclose(layer.v, scanned.v[i], atol=1e-5)


def test_remat_changes_neither_loss_nor_gradient():
    tokens, positions = sequence(TINY)
    _, params = make(TINY)

    def loss(params, remat):
        model = Decoder(dataclasses.replace(TINY, remat=remat))
        return jnp.mean(jax.nn.log_softmax(logits_of(model, params, tokens, positions)[0])[..., 3])

    grad = jax.jit(jax.value_and_grad(loss), static_argnums=1)
    for a, b in zip(jax.tree.leaves(grad(params, False)), jax.tree.leaves(grad(params, True)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_positions_beyond_the_context_write_nothing():
    model, params = make(TINY)
    tokens, positions = sequence(TINY, length=4)
    cache = jax.tree.map(lambda x: x + 7.0, init_cache(TINY, 2, 8))
    _, after = logits_of(model, params, tokens, positions + jnp.array([[0], [8]]), cache)
    assert (np.asarray(after.k[:, 1]) == 7).all() and (np.asarray(after.v[:, 1]) == 7).all()
    assert (np.asarray(after.k[:, 0, :, :, :4]) != 7).any() and (np.asarray(after.k[:, 0, :, :, 4:]) == 7).all()


def test_stale_entries_behind_the_query_are_not_seen():
    model, params = make(TINY)
    tokens, positions = sequence(TINY, length=5)
    clean, _ = logits_of(model, params, tokens, positions, init_cache(TINY, 2, 8))
    dirty = jax.tree.map(lambda x: x + 100.0, init_cache(TINY, 2, 8))
    np.testing.assert_array_equal(clean, logits_of(model, params, tokens, positions, dirty)[0])


def test_attention_by_hand():
    # One head of width 2, scale 1/sqrt(2); keys chosen so that the scores of token 1 are 0 and sqrt(2) ln 3 / sqrt(2).
    q = jnp.array([[1.0, 0.0], [1.0, 0.0]]).reshape(1, 2, 1, 1, 2)
    k = jnp.array([[0.0, 5.0], [np.sqrt(2) * np.log(3), 5.0]]).reshape(1, 2, 1, 2)
    v = jnp.array([[4.0, 0.0], [8.0, 4.0]]).reshape(1, 2, 1, 2)
    out = causal_attention(q, k, v).reshape(2, 2)
    np.testing.assert_allclose(out, [[4.0, 0.0], [7.0, 3.0]], rtol=1e-6)  # weights 1; then 1/4 and 3/4


def test_attention_in_chunks_equals_attention_at_once():
    B, T, K, G, D = 1, 150, 2, 3, 4  # three chunks, the last one short
    q, k, v = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate(((B, T, K, G, D), *[(B, T, K, D)] * 2)))
    scores = np.einsum("btkgd,bskd->bkgts", q, k) / 2
    scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    expected = np.einsum("bkgts,bskd->btkgd", weights / weights.sum(-1, keepdims=True), v)
    np.testing.assert_allclose(causal_attention(q, k, v), expected, atol=1e-5)


@pytest.mark.parametrize("window", [0, 20])
def test_long_chunks_in_pieces_change_nothing(window, monkeypatch):
    shapes = (1, 128, 1, 2, 4), (1, 128, 1, 4), (1, 128, 1, 4)  # two chunks of 64
    operands = [jax.random.normal(jax.random.key(i), shape) for i, shape in enumerate(shapes)]

    def of():
        rule = Scores(window=window)
        value = jax.jit(lambda *operands: jnp.sum(jnp.sin(causal_attention(*operands, rule, window > 0))))
        return jax.value_and_grad(value, argnums=(0, 1, 2))(*operands)

    whole = of()
    monkeypatch.setattr(attention, "_PIECE", 16)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), of(), whole)


@pytest.mark.parametrize("local", [False, True, "traced"])
def test_the_fused_kernel_is_asked_for_the_same(local):
    """By its XLA implementation; which kernel runs is all that another one changes."""
    B, T, K, G, D = 2, 70, 2, 2, 8
    q, k, v = (jax.random.normal(jax.random.key(i), s) for i, s in enumerate(((B, T, K, G, D), *[(B, T, K, D)] * 2)))
    rule = Scores(scale=0.3, window=5)
    for value in (True, False) if local == "traced" else (local,):
        asked = jnp.array(value) if local == "traced" else value
        run = functools.partial(fused_attention, q, k, v, rule, implementation="xla")
        out = (jax.jit(run) if local == "traced" else run)(asked)
        np.testing.assert_allclose(out, causal_attention(q, k, v, rule, value), atol=1e-5)
    with pytest.raises(ValueError, match="attention=cudnn has no soft cap and no float32"):
        dataclasses.replace(TINY, attention="cudnn")


def test_rope_by_hand():
    table = rope_table(jnp.array([[0, 2]]), head_dim=4, theta=100.0)  # frequencies 1 and 1/10
    x = jnp.tile(jnp.array([1.0, 0.0, 0.0, 1.0]), (1, 2, 1, 1))
    rotated = apply_rope(x, table)[0, :, 0]
    np.testing.assert_allclose(rotated[0], [1, 0, 0, 1])
    np.testing.assert_allclose(rotated[1], [np.cos(2), -np.sin(0.2), np.sin(2), np.cos(0.2)], rtol=1e-6)


def test_rms_norm_by_hand():
    out = RMSNorm(eps=0.0).apply({"params": {"scale": jnp.array([1.0, 2.0])}}, jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(out, [3 / np.sqrt(12.5), 8 / np.sqrt(12.5)], rtol=1e-6)


def test_product_gradient_equals_autodiff():
    x, w = jax.random.normal(jax.random.key(0), (2, 3, 4)), jax.random.normal(jax.random.key(1), (4, 5, 6))

    def own(x, w):
        return jnp.sum(jnp.sin(product("btd,dnh->btnh", x, w)))

    def plain(x, w):
        return jnp.sum(jnp.sin(jnp.einsum("btd,dnh->btnh", x, w)))

    for a, b in zip(jax.grad(own, (0, 1))(x, w), jax.grad(plain, (0, 1))(x, w), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_bf16_stays_near_float32_and_has_float32_gradients():
    _, params = make(TINY)
    tokens, positions = sequence(TINY)

    def loss(params, dtype):
        logits, _ = logits_of(Decoder(dataclasses.replace(TINY, dtype=dtype)), params, tokens, positions)
        return -jnp.mean(jax.nn.log_softmax(logits)[..., 3])

    low, gradient = jax.jit(jax.value_and_grad(loss), static_argnums=1)(params, "bfloat16")
    assert abs(float(low - loss(params, "float32"))) < 2e-2
    assert {leaf.dtype for leaf in jax.tree.leaves(gradient)} == {jnp.dtype("float32")}


def test_bad_configs_name_the_value():
    with pytest.raises(ValueError, match="num_kv_heads=3 does not divide num_heads=4"):
        dataclasses.replace(TINY, num_kv_heads=3)
    with pytest.raises(ValueError, match="head_dim=5 is odd"):
        dataclasses.replace(TINY, head_dim=5)
    with pytest.raises(ValueError, match="num_layers=0"):
        dataclasses.replace(TINY, num_layers=0)


def test_logical_specs_match_the_parameters():
    model, params = make(VARIANTS["qk_norm_untied"])
    specs = logical_specs(model)
    is_spec = lambda x: isinstance(x, jax.sharding.PartitionSpec)  # noqa: E731
    assert jax.tree.structure(specs, is_leaf=is_spec) == jax.tree.structure(params)
    for spec, leaf in zip(jax.tree.leaves(specs, is_leaf=is_spec), jax.tree.leaves(params), strict=True):
        assert len(spec) == leaf.ndim
    assert specs["layers"]["attention"]["q"] == jax.sharding.PartitionSpec("layers", "embed", "heads", "head_dim")
    assert specs["embedding"] == jax.sharding.PartitionSpec("vocab", "embed")


MESH_SCRIPT = """
import json, sys
import jax, jax.numpy as jnp, numpy as np
from flax import linen as nn
from spade_jax.policy import Decoder, DecoderConfig, init_params, logical_specs
from spade_jax.sampler import Engine, SamplingConfig
from jax.sharding import AxisType, NamedSharding

assert jax.device_count() == 8
config = DecoderConfig(vocab_size=40, embed_dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=32)
model = Decoder(config)
params = init_params(model, jax.random.key(1))
tokens = jax.random.randint(jax.random.key(2), (8, 12), 0, 40)
positions = jnp.broadcast_to(jnp.arange(12), (8, 12))

def forward(params, tokens):
    hidden, _ = model.apply({"params": params}, tokens, positions)
    return model.apply({"params": params}, hidden, method="head")

alone = np.asarray(jax.jit(forward)(params, tokens))
mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
rules = (("batch", ("data", "fsdp")), ("embed", "fsdp"), ("heads", "tensor"), ("kv_heads", "tensor"),
         ("mlp", "tensor"), ("vocab", "tensor"))
with jax.set_mesh(mesh), nn.logical_axis_rules(rules):
    shardings = nn.logical_to_mesh_sharding(logical_specs(model), mesh, rules)
    sharded = jax.device_put(params, shardings)
    q = sharded["layers"]["attention"]["q"]
    assert q.sharding.shard_shape(q.shape) == (2, 12, 2, 6)
    rows = jax.device_put(tokens, NamedSharding(mesh, jax.P(("data", "fsdp"))))
    together = np.asarray(jax.jit(forward)(sharded, rows))

def sample(params, mesh, slots):
    engine = Engine(model, params, slots=slots, context=64, block=4, stop_token=1, run_seed=3, mesh=mesh)
    for i in range(6):
        handle = engine.open(f"c{i}", SamplingConfig(temperature=0.8, top_p=0.9))
        engine.submit(handle, np.arange(2, 5 + i), 12)
    done = []
    while engine.busy:
        for response in engine.step():
            done.append(response)
            engine.close(response.handle)
    done = sorted(done, key=lambda r: r.handle)
    return [r.tokens.tolist() for r in done], np.concatenate([r.logp for r in done]), engine

one, one_logp, _ = sample(params, None, 4)
eight, eight_logp, engine = sample(sharded, mesh, 4)
uneven, _, _ = sample(sharded, mesh, 3)
plain, _, _ = sample(params, mesh, 4)
k = engine._cache[0].k
print(json.dumps({
    "logits": float(np.abs(alone - together).max()), "logp": float(np.abs(one_logp - eight_logp).max()),
    "same": one == eight == uneven == plain, "slots_per_device": k.sharding.shard_shape(k.shape)[0]}))
"""


@pytest.mark.slow
def test_eight_devices_give_the_same_logits_and_samples():
    env = dict(os.environ, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8")
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(MESH_SCRIPT)], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-2000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["logits"] < 1e-5 and result["logp"] < 1e-5
    assert result["same"]
    assert result["slots_per_device"] == 1  # 4 slots over data 2 and fsdp 2
