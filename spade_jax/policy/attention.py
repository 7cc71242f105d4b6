"""The two attention products: causal over a sequence, by XLA or a kernel of GPUs or TPUs, and over a cache.

Axis legend: B rows, T (queries) and S (keys) tokens, C cache positions,
K key/value heads, G query heads per key/value head, D head width.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp

from spade_jax.policy.cache import KVCache
from spade_jax.policy.placement import mesh_axes

Local = bool | jax.Array  # of one layer, known while tracing or not: does it see a window only
Range = tuple[int, int]
Chunks = tuple[tuple[Range, Range], ...]  # of queries, and of the keys that some of these see
_PIECE = 512  # queries whose scores exist at once in long sequences
_LANES = 128  # the least block of the kernel for TPUs
MASKED = -1e30  # finite: a row that is masked everywhere must not become NaN


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
    never computed. Long chunks go through in pieces, whose scores are computed
    anew in the backward pass, so that those of one piece exist at a time.
    Key/value heads are not repeated for their G query heads.
    """
    B, T, K, G, D = q_BxTxKxGxD.shape
    chunk = max(64, -(-T // 8))
    q_BxKxGxTxD = q_BxTxKxGxD.transpose(0, 2, 3, 1, 4) * rule.scale_of(D)
    k_BxKxSxD = k_BxTxKxD.transpose(0, 2, 1, 3)
    v_BxKxSxD = v_BxTxKxD.transpose(0, 2, 1, 3)

    def attend(chunks: Chunks, q_BxKxGxQxD: jax.Array, first: jax.Array | int) -> jax.Array:
        """Of the queries from `first` on."""
        seen = [
            visible(first + jnp.arange(start, end)[:, None], jnp.arange(*keys)[None, :], rule.window, local)
            for (start, end), keys in chunks
        ]
        return _attend(rule, chunks, q_BxKxGxQxD, k_BxKxSxD, v_BxKxSxD, seen)

    chunks = []
    for start in range(0, T, chunk):
        end = min(start + chunk, T)
        begin = max(0, start + 1 - rule.window) if local is True and rule.window else 0
        chunks.append(((start, end), (begin, end)))
    if chunk < 2 * _PIECE or chunk % _PIECE:
        return attend(tuple(chunks), q_BxKxGxTxD, 0).transpose(0, 3, 1, 2, 4)

    outputs = []
    for (start, end), keys in chunks:
        pieces, rest = divmod(end - start, _PIECE)
        if rest:  # the last chunk
            outputs.append(attend((((0, end - start), keys),), q_BxKxGxTxD[:, :, :, start:end], start))
            continue
        of = jax.checkpoint(functools.partial(attend, (((0, _PIECE), keys),)), prevent_cse=False)
        split = jnp.moveaxis(q_BxKxGxTxD[:, :, :, start:end].reshape(B, K, G, pieces, _PIECE, D), 3, 0)
        firsts = start + _PIECE * jnp.arange(pieces)
        out = jax.lax.map(lambda piece, of=of: of(*piece), (split, firsts))
        outputs.append(jnp.moveaxis(out, 0, 3).reshape(B, K, G, end - start, D))
    return jnp.concatenate(outputs, axis=3).transpose(0, 3, 1, 2, 4)


def _multiply(a: jax.Array, b: jax.Array, axis: int) -> jax.Array:
    """float32 product of matrices [B, K, ., .] that sums the last axis of `a` and the given one of `b`.

    XLA:CPU gives its library no product that sums another axis of its first operand.
    """
    return jax.lax.dot_general(a, b, (((3,), (axis,)), ((0, 1), (0, 1))), preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attend(
    rule: Scores,
    chunks: Chunks,
    q_BxKxGxTxD: jax.Array,
    k_BxKxSxD: jax.Array,
    v_BxKxSxD: jax.Array,
    seen: list[jax.Array],
) -> jax.Array:
    """float32[B, K, G, T, D], attention of each chunk's queries, already scaled, to its keys.

    The gradient is that of FlashAttention-2 (Dao 2023, arXiv:2307.08691), but the weights are kept, not computed anew.
    Its products have operands of the precision of q, k and v, as `products.product` has.

    Args:
      seen: bool[its queries, its keys] of each chunk; every query sees one or more.
    """
    return _attend_forward(rule, chunks, q_BxKxGxTxD, k_BxKxSxD, v_BxKxSxD, seen)[0]


def _attend_forward(rule, chunks, q_BxKxGxTxD, k_BxKxSxD, v_BxKxSxD, seen):
    B, K, G, _, D = q_BxKxGxTxD.shape
    outs, masses, kept = [], [], []
    for ((start, end), (begin, stop)), seen_QxS in zip(chunks, seen, strict=True):
        Q, S = seen_QxS.shape
        # One batched matrix product per (row, head): XLA:CPU is slower with two query axes.
        q = q_BxKxGxTxD[:, :, :, start:end].reshape(B, K, G * Q, D)
        scores, uncap = jax.vjp(rule.cap, _multiply(q, k_BxKxSxD[:, :, begin:stop], 3))
        scores = jnp.where(seen_QxS, scores.reshape(B, K, G, Q, S), MASKED)
        weights = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
        masses.append(jnp.sum(weights, axis=-1, keepdims=True))
        weights = weights.reshape(B, K, G * Q, S).astype(v_BxKxSxD.dtype)
        outs.append(_multiply(weights, v_BxKxSxD[:, :, begin:stop], 2).reshape(B, K, G, Q, D))
        kept.append((weights, uncap))
    mass_BxKxGxTx1 = jnp.concatenate(masses, axis=3)
    out_BxKxGxTxD = jnp.concatenate(outs, axis=3) / mass_BxKxGxTx1
    return out_BxKxGxTxD, (q_BxKxGxTxD, k_BxKxSxD, v_BxKxSxD, kept, mass_BxKxGxTx1, out_BxKxGxTxD)


def _attend_backward(rule, chunks, residuals, g_BxKxGxTxD):
    q_BxKxGxTxD, k_BxKxSxD, v_BxKxSxD, kept, mass_BxKxGxTx1, out_BxKxGxTxD = residuals
    B, K, G, _, D = q_BxKxGxTxD.shape
    g_BxKxGxTxD = (g_BxKxGxTxD / mass_BxKxGxTx1).astype(v_BxKxSxD.dtype)  # instead of the weights
    mean_BxKxGxTx1 = jnp.sum(g_BxKxGxTxD.astype(jnp.float32) * out_BxKxGxTxD, axis=-1, keepdims=True)
    # Transposed whole, and dk and dv added up as they come: XLA takes the transpose of an operand or of a result back
    # into the product, which then sums another axis. With one chunk it does so all the same, and XLA:CPU has no such
    # product of bfloat16.
    precision = jnp.float32 if len(chunks) == 1 else k_BxKxSxD.dtype
    q_BxKxDxGxT, g_BxKxDxGxT = (x.astype(precision).transpose(0, 1, 4, 2, 3) for x in (q_BxKxGxTxD, g_BxKxGxTxD))
    dk_BxKxDxS, dv_BxKxDxS = (jnp.zeros_like(x, jnp.float32).swapaxes(2, 3) for x in (k_BxKxSxD, v_BxKxSxD))
    dqs = []
    for ((start, end), (begin, stop)), (weights, uncap) in zip(chunks, kept, strict=True):
        k, v = k_BxKxSxD[:, :, begin:stop], v_BxKxSxD[:, :, begin:stop]
        g, mean = (x[:, :, :, start:end].reshape(B, K, -1, x.shape[-1]) for x in (g_BxKxGxTxD, mean_BxKxGxTx1))
        (d_scores,) = uncap(weights.astype(jnp.float32) * (_multiply(g, v, 3) - mean))
        d_scores = d_scores.astype(k.dtype)
        q_BxKxDxGQ, g_BxKxDxGQ = (x[..., start:end].reshape(B, K, D, -1) for x in (q_BxKxDxGxT, g_BxKxDxGxT))
        dqs.append(_multiply(d_scores, k, 2).reshape(B, K, G, end - start, D))
        dk_BxKxDxS = dk_BxKxDxS.at[..., begin:stop].add(_multiply(q_BxKxDxGQ, d_scores.astype(precision), 2))
        dv_BxKxDxS = dv_BxKxDxS.at[..., begin:stop].add(_multiply(g_BxKxDxGQ, weights.astype(precision), 2))
    dq_BxKxGxTxD = jnp.concatenate(dqs, axis=3).astype(q_BxKxGxTxD.dtype)
    dk_BxKxSxD, dv_BxKxSxD = (x.swapaxes(2, 3).astype(k_BxKxSxD.dtype) for x in (dk_BxKxDxS, dv_BxKxDxS))
    return dq_BxKxGxTxD, dk_BxKxSxD, dv_BxKxSxD, None


_attend.defvjp(_attend_forward, _attend_backward)


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


def splash_attention(
    q_BxTxKxGxD: jax.Array,
    k_BxTxKxD: jax.Array,
    v_BxTxKxD: jax.Array,
    rule: Scores = PLAIN,
    local: Local = False,
    *,
    interpret: bool = False,
) -> jax.Array:
    """As `causal_attention`, by a kernel for TPUs that never holds the scores; T a multiple of 128, else it is that.

    XLA cannot split the kernel over a mesh, so it is mapped over the devices: rows over the batch's axes, heads over
    theirs.

    Args:
      interpret: run the kernel anywhere, slowly.
    """
    from jax.experimental.pallas.ops.tpu import splash_attention as splash  # here: nobody else needs Pallas

    B, T, K, G, D = q_BxTxKxGxD.shape
    if T % _LANES:
        return causal_attention(q_BxTxKxGxD, k_BxTxKxD, v_BxTxKxD, rule, local)
    block = max(size for size in (_LANES, 2 * _LANES, 4 * _LANES) if T % size == 0)
    names = ("block_q", "block_kv", "block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")

    def attend(window: int, q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        mask = splash.LocalMask((T, T), (window - 1, 0), 0) if window else splash.CausalMask((T, T))
        kernel = splash.make_splash_mha(
            splash.MultiHeadMask([mask] * q.shape[1]),
            block_sizes=splash.BlockSizes(**dict.fromkeys(names, block)),
            attn_logits_soft_cap=rule.softcap or None,
            head_shards=1,
            q_seq_shards=1,
            interpret=interpret,
        )
        return jax.vmap(kernel)(q, k, v)

    def spread(window: int, *operands: jax.Array) -> jax.Array:
        rows, heads = mesh_axes("batch"), mesh_axes("kv_heads")
        if not (rows or heads):
            return attend(window, *operands)
        spec = jax.sharding.PartitionSpec(rows or None, heads or None)
        mapped = functools.partial(attend, window)
        return jax.shard_map(mapped, in_specs=(spec,) * 3, out_specs=spec, check_vma=False)(*operands)

    q_BxHxTxD = (q_BxTxKxGxD.reshape(B, T, K * G, D) * rule.scale_of(D)).astype(q_BxTxKxGxD.dtype).swapaxes(1, 2)
    operands = q_BxHxTxD, k_BxTxKxD.swapaxes(1, 2), v_BxTxKxD.swapaxes(1, 2)
    if isinstance(local, bool) or not rule.window:
        out = spread(rule.window if local is True else 0, *operands)
    else:  # the kernel's mask is fixed when it is compiled
        out = jax.lax.cond(local, functools.partial(spread, rule.window), functools.partial(spread, 0), *operands)
    return out.swapaxes(1, 2).reshape(B, T, K, G, D).astype(jnp.float32)


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
    weights = jax.nn.softmax(jnp.where(visible_BxTxC[:, None, None], scores, MASKED), axis=-1)
    weights = weights.reshape(B, K, G * T, cache.context).astype(cache.v.dtype)
    out_BxKxGTxD = jnp.einsum("bkqc,bkcd->bkqd", weights, cache.v, preferred_element_type=jnp.float32)
    return out_BxKxGTxD.reshape(B, K, G, T, D).transpose(0, 3, 1, 2, 4)
