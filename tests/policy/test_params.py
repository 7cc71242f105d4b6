"""The parameter store."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest

from spade_jax.policy import (
    Decoder,
    DecoderConfig,
    cast_params,
    count_active_params,
    count_params,
    init_params,
    load_params,
    quantize_params,
    save_params,
)

CONFIG = DecoderConfig(vocab_size=10, embed_dim=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=12)


@pytest.fixture(scope="module")
def params():
    return init_params(Decoder(CONFIG), jax.random.key(0))


def test_count_by_hand(params):
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8  # q, k, v, o
    assert count_params(params) == 10 * 8 + 8 + 2 * (attention + 3 * 8 * 12 + 2 * 8)


def test_active_count_by_hand():
    config = dataclasses.replace(CONFIG, num_experts=6, experts_per_token=2)
    shapes = jax.eval_shape(lambda: init_params(Decoder(config), jax.random.key(0)))
    one, router = 3 * 8 * 12, 8 * 6
    attention = 8 * 8 + 8 * 4 + 8 * 4 + 8 * 8
    rest = 10 * 8 + 8 + 2 * (attention + router + 2 * 8)
    assert count_params(shapes) == rest + 2 * 6 * one
    assert count_active_params(shapes, config) == rest + 2 * 2 * one


def test_int8_by_hand():
    config = dataclasses.replace(CONFIG, num_experts=3, experts_per_token=1)
    params = init_params(Decoder(config), jax.random.key(0))
    low = quantize_params(params, "bfloat16")
    mlp, full = low["layers"]["mlp"], np.asarray(params["layers"]["mlp"]["down"])
    assert mlp["down"].dtype == "int8" and mlp["down_scale"].shape == (2, 3, 1, 8)
    np.testing.assert_allclose(mlp["down_scale"][1, 2, 0, 5], np.abs(full[1, 2, :, 5]).max() / 127, rtol=1e-6)
    assert int(np.abs(mlp["down"]).max()) == 127
    back = np.asarray(mlp["down"], np.float32) * np.asarray(mlp["down_scale"])
    assert (np.abs(back - full) <= np.asarray(mlp["down_scale"]) * 0.501).all()
    assert low["layers"]["attention"]["o_scale"].shape == (2, 1, 1, 8)
    assert mlp["router"].dtype == low["embedding"].dtype == "bfloat16"
    assert low["layers"]["mlp_norm"]["scale"].dtype == "float32" and "router_scale" not in mlp


def test_round_trip(tmp_path, params):
    path = tmp_path / "weights.npz"
    save_params(path, params, CONFIG)
    loaded, config = load_params(path)
    assert config == CONFIG
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)
    assert [p.name for p in tmp_path.iterdir()] == ["weights.npz"]


def test_float16_halves_the_file_and_loads_as_float32(tmp_path, params):
    save_params(tmp_path / "full.npz", params, CONFIG)
    save_params(tmp_path / "half.npz", params, CONFIG, storage="float16")
    loaded, _ = load_params(tmp_path / "half.npz")
    assert {leaf.dtype.name for leaf in jax.tree.leaves(loaded)} == {"float32"}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), loaded, params)
    # Names and zip headers take a fixed part of so small a file.
    saved = (tmp_path / "full.npz").stat().st_size - (tmp_path / "half.npz").stat().st_size
    assert saved == 2 * count_params(params)


def test_strange_files_are_refused(tmp_path, params):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="holds no config.json"):
        load_params(tmp_path / "other.npz")
    save_params(tmp_path / "short.npz", params | {"embedding": params["embedding"][:5]}, CONFIG)
    with pytest.raises(ValueError, match="do not fit its own config"):
        load_params(tmp_path / "short.npz")


def test_cast_keeps_norm_scales(params):
    low = cast_params(params, "bfloat16")
    assert low["embedding"].dtype.name == "bfloat16"
    assert low["layers"]["mlp_norm"]["scale"].dtype.name == "float32"
    assert cast_params(params, "float32")["embedding"] is params["embedding"]
