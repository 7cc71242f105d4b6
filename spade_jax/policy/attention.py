"""Rotary positions and the two attention products: causal over a sequence, and over a cache.

Axis legend: B rows, T (queries) and S (keys) tokens, C cache positions,
K key/value heads, G query heads per key/value head, D head width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from spade_jax.policy.cache import KVCache

_MASKED = -1e30  # finite: a row that is masked everywhere must not become NaN


def rope_table(positions_BxT: jax.Array, head_dim: int, theta: float) -> tuple[jax.Array, jax.Array]:
    """Cosines and sines, float32[B, T, D/2], of rotary embeddings (Su et al. 2021, arXiv:2104.09864)."""
    frequencies = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim)
    angles = positions_BxT[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


def apply_rope(x_BxTxNxD: jax.Array, table: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Rotates dimension i together with i + D/2 (half rotation, as in Llama and Qwen)."""
    cos, sin = (t[:, :, None, :] for t in table)
    first, second = jnp.split(x_BxTxNxD, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def causal_attention(q_BxTxKxGxD: jax.Array, k_BxTxKxD: jax.Array, v_BxTxKxD: jax.Array) -> jax.Array:
    """Attention of every token to itself and the tokens before it; returns float32 [B, T, K, G, D].

    Queries go in at most 8 chunks of at least 64, each against the keys up to its
    own end: the half of the score matrix that the mask would discard is mostly
    never computed. Key/value heads are not repeated for their G query heads.
    """
    B, T, K, G, D = q_BxTxKxGxD.shape
    chunk = max(64, -(-T // 8))
    q_BxKxGxTxD = q_BxTxKxGxD.transpose(0, 2, 3, 1, 4) * D**-0.5
    k_BxKxSxD = k_BxTxKxD.transpose(0, 2, 1, 3)
    v_BxKxSxD = v_BxTxKxD.transpose(0, 2, 1, 3)
    outputs = []
    for start in range(0, T, chunk):
        end = min(start + chunk, T)
        # One batched matrix product per (row, head): XLA:CPU is slower with two query axes.
        q = q_BxKxGxTxD[:, :, :, start:end].reshape(B, K, G * (end - start), D)
        scores = jnp.einsum("bkqd,bksd->bkqs", q, k_BxKxSxD[:, :, :end], preferred_element_type=jnp.float32)
        causal = jnp.arange(start, end)[:, None] >= jnp.arange(end)[None, :]
        scores = jnp.where(causal, scores.reshape(B, K, G, end - start, end), _MASKED)
        weights = jax.nn.softmax(scores, axis=-1).reshape(B, K, G * (end - start), end).astype(v_BxTxKxD.dtype)
        out = jnp.einsum("bkqs,bksd->bkqd", weights, v_BxKxSxD[:, :, :end], preferred_element_type=jnp.float32)
        outputs.append(out.reshape(B, K, G, end - start, D))
    return jnp.concatenate(outputs, axis=3).transpose(0, 3, 1, 2, 4)


def cached_attention(q_BxTxKxGxD: jax.Array, cache: KVCache, positions_BxT: jax.Array) -> jax.Array:
    """Attention of a query at position p to cache positions 0..p of its row; returns float32 [B, T, K, G, D]."""
    B, T, K, G, D = q_BxTxKxGxD.shape
    # One batched matrix product per (row, head): XLA:CPU runs the einsum with two query axes 5 times slower.
    q_BxKxGTxD = q_BxTxKxGxD.transpose(0, 2, 3, 1, 4).reshape(B, K, G * T, D)
    q_BxKxGTxD = (q_BxKxGTxD * D**-0.5).astype(cache.k.dtype)
    scores = jnp.einsum("bkqd,bkdc->bkqc", q_BxKxGTxD, cache.k, preferred_element_type=jnp.float32)
    visible_BxTxC = positions_BxT[:, :, None] >= jnp.arange(cache.context)
    scores = scores.reshape(B, K, G, T, cache.context)
    weights = jax.nn.softmax(jnp.where(visible_BxTxC[:, None, None], scores, _MASKED), axis=-1)
    weights = weights.reshape(B, K, G * T, cache.context).astype(cache.v.dtype)
    out_BxKxGTxD = jnp.einsum("bkqc,bkcd->bkqd", weights, cache.v, preferred_element_type=jnp.float32)
    return out_BxKxGTxD.reshape(B, K, G, T, D).transpose(0, 3, 1, 2, 4)
