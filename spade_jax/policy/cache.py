"""Keys and values of past tokens, an explicit pytree that goes in and comes out of the forward pass.

Axis legend: L layers, S slots, K key/value heads, D head width, C context (cache positions).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from spade_jax.policy.config import DecoderConfig


class KVCache(NamedTuple):
    """The cache of all layers, or of one layer where the L axis is absent.

    Index c of the C axis belongs to position c of the row's conversation: rows
    are left-aligned. Entries at positions not yet written are never attended to.

    Attributes:
      k: [L, S, K, D, C], positions last: a step's products with all keys then
        read memory in order, several times faster on a CPU than [.., C, D].
      v: [L, S, K, C, D].
    """

    k: jax.Array
    v: jax.Array

    @property
    def context(self) -> int:
        return self.k.shape[-1]


def init_cache(config: DecoderConfig, slots: int, context: int, dtype: str = "float32") -> KVCache:
    """Returns an empty cache for `slots` conversations of at most `context` tokens."""
    lead = (config.num_layers, slots, config.num_kv_heads)
    return KVCache(
        k=jnp.zeros((*lead, config.head_dim, context), dtype),
        v=jnp.zeros((*lead, context, config.head_dim), dtype),
    )


def cache_spec(mesh: jax.sharding.Mesh, slots: int, kv_heads: int) -> jax.sharding.PartitionSpec:
    """Of a layer's keys and values, whose first axes are slots and heads."""
    heads = "tensor" if "tensor" in mesh.axis_names and kv_heads % mesh.shape["tensor"] == 0 else None
    rows: tuple[str, ...] = ()
    for axis in mesh.axis_names:  # as many as divide the slots
        if axis != "tensor" and slots % (math.prod(mesh.shape[a] for a in rows) * mesh.shape[axis]) == 0:
            rows = (*rows, axis)
    return jax.sharding.PartitionSpec(rows or None, heads)


def split_layers(cache: KVCache) -> tuple[KVCache, ...]:
    """One cache per layer, as an unrolled decoder takes them."""
    return tuple(KVCache(k, v) for k, v in zip(cache.k, cache.v, strict=True))


def write(cache: KVCache, k_BxTxKxD: jax.Array, v_BxTxKxD: jax.Array, positions_BxT: jax.Array) -> KVCache:
    """Stores one layer's new keys and values at their positions; positions >= C (padding) write nothing."""
    rows_Bx1 = jnp.arange(positions_BxT.shape[0])[:, None]
    # Negative indices would wrap around before mode="drop" sees them; positions are never negative.
    return KVCache(
        k=cache.k.at[rows_Bx1, :, :, positions_BxT].set(k_BxTxKxD.astype(cache.k.dtype), mode="drop"),
        v=cache.v.at[rows_Bx1, :, positions_BxT, :].set(v_BxTxKxD.astype(cache.v.dtype), mode="drop"),
    )
