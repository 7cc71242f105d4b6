"""The network: a decoder-only transformer, its cache and its parameters."""

from spade_jax.policy.cache import KVCache, cache_spec, init_cache, split_layers
from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.decoder import Decoder
from spade_jax.policy.lora import join_params, merge_adapters, split_adapters
from spade_jax.policy.params import (
    cast_params,
    count_active_params,
    count_params,
    init_params,
    load_params,
    logical_specs,
    quantize_params,
    save_params,
    unrolled_params,
)

__all__ = [
    "Decoder",
    "DecoderConfig",
    "KVCache",
    "cache_spec",
    "cast_params",
    "count_active_params",
    "count_params",
    "init_cache",
    "init_params",
    "join_params",
    "load_params",
    "logical_specs",
    "merge_adapters",
    "quantize_params",
    "save_params",
    "split_adapters",
    "split_layers",
    "unrolled_params",
]
