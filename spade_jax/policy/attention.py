"""The two attention products: causal over a sequence, and over a cache.

Axis legend: B rows, T (queries) and S (keys) tokens, C cache positions,
K key/value heads, G query heads per key/value head, D head width.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from spade_jax.policy.cache import KVCache

Local = bool | jax.Array  # of one layer, known while tracing or not: does it see a window only
_MASKED = -1e30  # finite: a row that is masked everywhere must not become NaN


@dataclasses.dataclass(frozen=True)
class Scores:
    """What becomes of the products of queries and keys before the softmax.

    Attributes:
      scale: multiplies them; 0 takes D ** -0.5.
      softcap: c in c tanh(score / c); 0 caps nothing.
      window: keys that a query sees, its own included, where `local` holds.
    """

    scale: float = 0.0
    softcap: float = 0.0
    window: int = 0

    def scale_of(self, head_dim: int) -> float:
        return self.scale or head_dim**-0.5

    def cap(self, scores: jax.Array) -> jax.Array:
        return jnp.tanh(scores / self.softcap) * self.softcap if self.softcap else scores


PLAIN = Scores()


def visible(query: jax.Array, key: jax.Array, window: int, local: Local) -> jax.Array:
    """bool, broadcast of both: whether the query at one position sees the key at the other."""
    seen = query >= key
    if local is False or not window:
        return seen
    near = query - key < window
    return seen & (near if local is True else near | ~local)


def causal_attention(
    q_BxTxKxGxD: jax.Array,
    k_BxTxKxD: jax.Array,
    v_BxTxKxD: jax.Array,
    rule: Scores = PLAIN,
    local: Local = False,
) -> jax.Array:
    """Attention of every token to itself and the tokens before it; returns float32 [B, T, K, G, D].

    Queries go in at most 8 chunks of at least 64, each against the keys up to its
    own end: the half of the score matrix that the mask would discard is mostly
    never computed. Key/value heads are not repeated for their G query heads.
    """
    B, T, K, G, D = q_BxTxKxGxD.shape
    chunk = max(64, -(-T // 8))
    q_BxKxGxTxD = q_BxTxKxGxD.transpose(0, 2, 3, 1, 4) * rule.scale_of(D)
    k_BxKxSxD = k_BxTxKxD.transpose(0, 2, 1, 3)
    v_BxKxSxD = v_BxTxKxD.transpose(0, 2, 1, 3)
    outputs = []
    for start in range(0, T, chunk):
        end = min(start + chunk, T)
        begin = max(0, start + 1 - rule.window) if local is True and rule.window else 0
        # One batched matrix product per (row, head): XLA:CPU is slower with two query axes.
        q = q_BxKxGxTxD[:, :, :, start:end].reshape(B, K, G * (end - start), D)
        scores = jnp.einsum("bkqd,bksd->bkqs", q, k_BxKxSxD[:, :, begin:end], preferred_element_type=jnp.float32)
        causal = visible(jnp.arange(start, end)[:, None], jnp.arange(begin, end)[None, :], rule.window, local)
        scores = jnp.where(causal, rule.cap(scores).reshape(B, K, G, end - start, end - begin), _MASKED)
        weights = jax.nn.softmax(scores, axis=-1).reshape(B, K, G * (end - start), end - begin).astype(v_BxTxKxD.dtype)
        out = jnp.einsum("bkqs,bksd->bkqd", weights, v_BxKxSxD[:, :, begin:end], preferred_element_type=jnp.float32)
        outputs.append(out.reshape(B, K, G, end - start, D))
    return jnp.concatenate(outputs, axis=3).transpose(0, 3, 1, 2, 4)


def fused_attention(
    q_BxTxKxGxD: jax.Array,
    k_BxTxKxD: jax.Array,
    v_BxTxKxD: jax.Array,
    rule: Scores = PLAIN,
    local: Local = False,
    implementation: str = "cudnn",
) -> jax.Array:
    """As `causal_attention`, by one kernel that never holds the scores; without soft cap, operands of 16 bits.

    Args:
      implementation: what `jax.nn.dot_product_attention` is to use.
    """
    B, T, K, G, D = q_BxTxKxGxD.shape

    def attend(window: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        near = (window - 1, 0) if window else None
        return jax.nn.dot_product_attention(
            q,
            k,
            v,
            scale=rule.scale_of(D),
            is_causal=True,
            local_window_size=near,
            implementation=implementation,
        )

    operands = q_BxTxKxGxD.reshape(B, T, K * G, D), k_BxTxKxD, v_BxTxKxD
    if isinstance(local, bool) or not rule.window:
        out = attend(rule.window if local is True else 0, *operands)
    else:  # the kernel's window is fixed when it is compiled
        out = jax.lax.cond(local, functools.partial(attend, rule.window), functools.partial(attend, 0), *operands)
    return out.reshape(B, T, K, G, D).astype(jnp.float32)


def cached_attention(
    q_BxTxKxGxD: jax.Array,
    cache: KVCache,
    positions_BxT: jax.Array,
    rule: Scores = PLAIN,
    local: Local = False,
) -> jax.Array:
    """Attention of a query at position p to cache positions 0..p of its row; returns float32 [B, T, K, G, D]."""
    B, T, K, G, D = q_BxTxKxGxD.shape
    # One batched matrix product per (row, head): XLA:CPU runs the einsum with two query axes 5 times slower.
    q_BxKxGTxD = q_BxTxKxGxD.transpose(0, 2, 3, 1, 4).reshape(B, K, G * T, D)
    q_BxKxGTxD = (q_BxKxGTxD * rule.scale_of(D)).astype(cache.k.dtype)
    scores = jnp.einsum("bkqd,bkdc->bkqc", q_BxKxGTxD, cache.k, preferred_element_type=jnp.float32)
    visible_BxTxC = visible(positions_BxT[:, :, None], jnp.arange(cache.context), rule.window, local)
    scores = rule.cap(scores).reshape(B, K, G, T, cache.context)
    weights = jax.nn.softmax(jnp.where(visible_BxTxC[:, None, None], scores, _MASKED), axis=-1)
    weights = weights.reshape(B, K, G * T, cache.context).astype(cache.v.dtype)
    out_BxKxGTxD = jnp.einsum("bkqc,bkcd->bkqd", weights, cache.v, preferred_element_type=jnp.float32)
    return out_BxKxGTxD.reshape(B, K, G, T, D).transpose(0, 3, 1, 2, 4)
