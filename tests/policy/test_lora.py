"""Adapters: nothing at first, then what the merged weights are; their gradients by the chain rule."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from spade_jax.policy import (
    Decoder,
    DecoderConfig,
    init_params,
    join_params,
    merge_adapters,
    split_adapters,
    unrolled_params,
)
from spade_jax.policy.config import LORA_TARGETS, LoraConfig
from spade_jax.policy.lora import FIRST, SECOND
from spade_jax.policy.weights import exported, places

DENSE = DecoderConfig(
    vocab_size=11, embed_dim=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=12, qk_norm=True,
    lora=LoraConfig(rank=3, alpha=6.0, targets=LORA_TARGETS),
)  # fmt: skip
EXPERTS = dataclasses.replace(DENSE, num_experts=4, experts_per_token=2)
SOME = dataclasses.replace(EXPERTS, lora=LoraConfig(rank=2, alpha=1.0, targets=("q", "v")), remat=True)
CONFIGS = pytest.mark.parametrize("config", [DENSE, EXPERTS, SOME], ids=["dense", "experts", "some"])
TOKENS = np.random.default_rng(0).integers(0, 11, (2, 5))
POSITIONS = np.broadcast_to(np.arange(5), TOKENS.shape)


def fresh(config):
    return jax.device_get(init_params(Decoder(config), jax.random.key(0)))


def moved(config):
    """Parameters whose adapters add something."""
    adapters, rest = split_adapters(fresh(config))
    rng = np.random.default_rng(1)
    adapters = jax.tree.map(lambda w: rng.normal(0, 0.3, w.shape).astype(np.float32), adapters)
    return join_params(adapters, rest)


def logits(model, params):
    hidden, _ = model.apply({"params": params}, TOKENS, POSITIONS)
    return model.apply({"params": params}, hidden, method="head")


def paths(config):
    """Of the weights that have an adapter."""
    flat = traverse_util.flatten_dict(fresh(config))
    return [(*path[:-1], path[-1].removesuffix(FIRST)) for path in flat if path[-1].endswith(FIRST)]


@CONFIGS
def test_fresh_adapters_change_nothing(config):
    params = fresh(config)
    assert sorted(path[-1] for path in paths(config)) == sorted(config.lora.targets)
    _, rest = split_adapters(params)
    assert jax.tree.map(jnp.shape, rest) == jax.tree.map(jnp.shape, fresh(config.merged))
    # Operation by operation, so that the compiler's fusions, which differ, round nothing.
    found = [
        logits(Decoder(c, unrolled=True), unrolled_params(tree, c.num_layers))
        for c, tree in ((config, params), (config.merged, rest))
    ]
    np.testing.assert_array_equal(*found)
    jax.tree.map(np.testing.assert_array_equal, merge_adapters(params, config), rest)


@CONFIGS
def test_merged_weights_compute_the_same(config):
    params = moved(config)
    merged = merge_adapters(params, config)
    assert jax.tree.structure(merged) == jax.tree.structure(fresh(config.merged))
    want = logits(Decoder(config), params)
    assert np.abs(want - logits(Decoder(config), fresh(config))).max() > 0.01
    np.testing.assert_allclose(logits(Decoder(config.merged), merged), want, atol=1e-5)
    unrolled = Decoder(config, unrolled=True)
    np.testing.assert_allclose(logits(unrolled, unrolled_params(params, config.num_layers)), want, atol=1e-5)


@CONFIGS
def test_gradients_are_those_of_the_product(config):
    """Of W + s A B: dA = s dW B^T and dB = s A^T dW, with dW that of the merged weights."""
    params, scale = moved(config), config.lora.alpha / config.lora.rank
    adapters, rest = split_adapters(params)
    weight = np.random.default_rng(2).normal(size=(*TOKENS.shape, config.vocab_size))
    got = jax.grad(lambda a: jnp.sum(logits(Decoder(config), join_params(a, rest)) * weight))(adapters)
    whole = jax.grad(lambda p: jnp.sum(logits(Decoder(config.merged), p) * weight))(merge_adapters(params, config))
    got, whole, flat = (traverse_util.flatten_dict(jax.device_get(tree)) for tree in (got, whole, adapters))
    for path in paths(config):
        first, second = ((*path[:-1], path[-1] + suffix) for suffix in (FIRST, SECOND))
        lead = 2 if config.num_experts and path[-1] in ("gate", "up", "down") else 1
        a = flat[first].reshape(*flat[first].shape[:lead], -1, config.lora.rank)
        b = flat[second].reshape(*flat[second].shape[:lead], config.lora.rank, -1)
        dw = whole[path].reshape(*a.shape[:-1], b.shape[-1])
        for name, want in ((first, scale * dw @ b.swapaxes(-1, -2)), (second, scale * a.swapaxes(-1, -2) @ dw)):
            np.testing.assert_allclose(got[name].reshape(want.shape), want, atol=2e-4, rtol=1e-4, err_msg=str(name))


def test_an_export_holds_the_merged_weights():
    params = moved(EXPERTS)
    merged = merge_adapters(params, EXPERTS)
    written = {name: np.asarray(tensor) for name, tensor in exported(params, EXPERTS)}
    plain = {name: np.asarray(tensor) for name, tensor in exported(merged, EXPERTS.merged)}
    assert written.keys() == {name for place in places(EXPERTS.merged).values() for name in place.names}
    for name, tensor in plain.items():
        np.testing.assert_array_equal(written[name], tensor)
    layer, expert = 1, 3
    down = merged["layers"]["mlp"]["down"][layer, expert]
    np.testing.assert_array_equal(written["model.layers.1.mlp.experts.3.down_proj.weight"], down.T)


def test_frozen_weights_are_kept_in_their_own_precision():
    config = dataclasses.replace(DENSE, dtype="bfloat16", param_dtype="bfloat16")
    adapters, rest = split_adapters(fresh(config))
    assert {leaf.dtype for leaf in jax.tree.leaves(adapters)} == {np.dtype("float32")}
    assert rest["layers"]["attention"]["q"].dtype == rest["embedding"].dtype == jnp.bfloat16
    assert rest["layers"]["attention_norm"]["scale"].dtype == np.float32
    merged = merge_adapters(moved(config), config)
    assert merged["layers"]["attention"]["q"].dtype == np.float32  # what is added is not rounded away


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(rank=0), "lora.rank=0 is none"),
        (dict(alpha=0.0), "lora.alpha=0.0 would add nothing"),
        (dict(targets=()), r"lora.targets=\(\) must be some of q, k"),
        (dict(targets=("q", "router")), "must be some of q, k, v, o, gate, up, down"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        LoraConfig(**(dict(rank=1, alpha=1.0, targets=("q",)) | settings))
