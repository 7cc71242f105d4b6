"""The network: a decoder-only transformer, its cache and its parameters."""

from spade_jax.policy.cache import KVCache, init_cache
from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.decoder import Decoder
from spade_jax.policy.params import count_params, init_params, load_params, logical_specs, save_params

__all__ = [
    "Decoder",
    "DecoderConfig",
    "KVCache",
    "count_params",
    "init_cache",
    "init_params",
    "load_params",
    "logical_specs",
    "save_params",
]
