"""Parameters: creation, logical axes, counting, and a single-file store.

Parameters are a plain nested dict of arrays; their logical axis names are a
tree of the same shape, from `logical_specs`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax import traverse_util

from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.decoder import SCALE, Decoder

# The axes that a product sums over, of the weights that are worth quantising.
_INPUTS = {"q": -3, "k": -3, "v": -3, "o": (-3, -2), "gate": -2, "up": -2, "down": -2}
_CONFIG_KEY = "config.json"


def _init(model: Decoder, key: jax.Array) -> Any:
    tokens = jnp.zeros((1, 1), jnp.int32)
    return model.init(key, tokens, tokens)["params"]


@functools.partial(jax.jit, static_argnums=0)
def init_params(model: Decoder, key: jax.Array) -> dict[str, Any]:
    """Fresh parameters, unboxed; under a `jax.jit` with out_shardings none of them ever exists unsharded."""
    return nn.meta.unbox(_init(model, key))


def logical_specs(model: Decoder) -> dict[str, Any]:
    """PartitionSpecs of logical axis names (vocab, embed, heads, kv_heads, mlp, layers, ...), one per parameter."""
    return nn.get_partition_spec(jax.eval_shape(lambda key: _init(model, key), jax.random.key(0)))


def unrolled_params(params: dict[str, Any], num_layers: int) -> dict[str, Any]:
    """The parameters of `Decoder(config, unrolled=True)`: one entry per layer in place of the stacked ones.

    A copy of the layers; embedding, head and final norm are the given arrays themselves.
    """
    rest = {name: value for name, value in params.items() if name != "layers"}
    return rest | _unstack(params["layers"], num_layers)


@functools.partial(jax.jit, static_argnums=1)
def _unstack(layers: dict[str, Any], num_layers: int) -> dict[str, Any]:
    return {f"layers_{i}": jax.tree.map(lambda w, i=i: w[i], layers) for i in range(num_layers)}


def cast_params(params: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Weights in the precision of the products; norm scales stay float32. No copy where nothing changes."""
    return jax.tree_util.tree_map_with_path(lambda path, w: w if path[-1].key == "scale" else w.astype(dtype), params)


def quantize_params(params: dict[str, Any], dtype: str) -> dict[str, Any]:
    """Weights of the layers' products in int8, for sampling: half of bfloat16's bytes, for which decoding waits.

    Each is divided by its largest magnitude per output channel (and layer, and expert) and rounded to 127 steps on
    either side. The divisors are parameters of their own; embedding, head, router, norms and biases stay as
    `cast_params` makes them.

    Args:
      params: of the scanned decoder.
      dtype: precision of the products.
    """
    layers = {}
    for path, weight in traverse_util.flatten_dict(params["layers"]).items():
        inputs = _INPUTS.get(path[-1])
        if path[0] not in ("attention", "mlp") or inputs is None:
            layers[path] = weight if path[-1] == "scale" else weight.astype(dtype)
            continue
        scale = jnp.max(jnp.abs(weight), axis=inputs, keepdims=True) / 127
        layers[path] = jnp.round(weight / jnp.maximum(scale, 1e-30)).astype(jnp.int8)
        layers[*path[:-1], path[-1] + SCALE] = scale
    rest = {name: value for name, value in params.items() if name != "layers"}
    return cast_params(rest, dtype) | {"layers": traverse_util.unflatten_dict(layers)}


def count_params(params: Any) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(params))


def count_active_params(params: Any, config: DecoderConfig) -> int:
    """Parameters that a token meets: of all experts' only those of the few that it goes through."""
    if not config.num_experts:
        return count_params(params)
    flat = traverse_util.flatten_dict(params)
    experts = count_params([w for path, w in flat.items() if path[:2] == ("layers", "mlp") and path[-1] != "router"])
    return count_params(params) - experts + experts * config.experts_per_token // config.num_experts


def save_params(path: str | Path, params: Any, config: DecoderConfig, storage: str = "float32") -> None:
    """Writes weights and config to one .npz file, replacing it in one step.

    Args:
      path: file to write.
      params: the nested dict of `init_params`.
      config: the network's shape, restored by `load_params`.
      storage: "float32", or "float16" for half the size at about 3 decimal digits.
    """
    arrays = {
        name: np.asarray(leaf).astype(storage) for name, leaf in traverse_util.flatten_dict(params, sep="/").items()
    }
    text = json.dumps(dataclasses.asdict(config))
    temporary = Path(f"{path}.tmp")
    try:
        with temporary.open("wb") as file:
            np.savez(file, **{_CONFIG_KEY: np.array(text)}, **arrays)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_params(path: str | Path) -> tuple[dict[str, Any], DecoderConfig]:
    """Reads what `save_params` wrote: (numpy weights in the config's param_dtype, config).

    Raises:
      ValueError: the file is not a store of this network's parameters.
    """
    with np.load(path, allow_pickle=False) as store:
        if _CONFIG_KEY not in store:
            raise ValueError(f"{path} holds no {_CONFIG_KEY}; give a file written by save_params.")
        config = DecoderConfig(**json.loads(str(store[_CONFIG_KEY])))
        flat = {name: store[name].astype(jnp.dtype(config.param_dtype)) for name in store.files if name != _CONFIG_KEY}
    params = traverse_util.unflatten_dict(flat, sep="/")
    expected = jax.eval_shape(lambda key: init_params(Decoder(config), key), jax.random.key(0))
    if jax.tree.map(jnp.shape, params) != jax.tree.map(jnp.shape, expected):
        raise ValueError(f"{path}: the weights' names or shapes do not fit its own config; write it anew.")
    return params, config
