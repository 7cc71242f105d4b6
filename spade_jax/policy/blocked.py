"""Decode attention over the blocks of a cache that hold something: a kernel for TPUs.

XLA's products run over as many positions in every row as the longest row needs. Here each row's blocks are visited up
to its own query, or from the first that its window reaches, and no others are fetched; the softmax is accumulated block
by block (Milakov & Gimelshein 2018, arXiv:1805.02867), so that no scores are held.

Axis legend: B rows, C cache positions, S positions of a block, K key/value heads, G query heads per key/value head,
D head width.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from spade_jax.policy.attention import MASKED, Scores, visible
from spade_jax.policy.cache import KVCache, cache_spec

_BLOCKS = (512, 256, 128)  # positions; at least a register's lanes


def fits(cache: KVCache, rule: Scores, local: bool | jax.Array) -> bool:
    """Whether `blocked_attention` can do it: whole blocks, and a window that is known while compiling."""
    return cache.context % _BLOCKS[-1] == 0 and (isinstance(local, bool) or not rule.window)


def blocked_attention(
    q_BxKxGxD: jax.Array,
    cache: KVCache,
    position_B: jax.Array,
    rule: Scores,
    local: bool,
    *,
    interpret: bool = False,
) -> jax.Array:
    """As `cached_attention` with one query for each row, at position p < C; float32[B, K, G, D].

    The result of a row whose position is C or more (idle) is meaningless.

    XLA cannot split the kernel over a mesh, so it is mapped over the devices as the cache is (`cache_spec`).

    Args:
      interpret: run the kernel anywhere, slowly.
    """
    attend = functools.partial(_attend, rule=rule, window=rule.window if local is True else 0, interpret=interpret)
    q_BxKxGxD = (q_BxKxGxD * rule.scale_of(q_BxKxGxD.shape[-1])).astype(cache.k.dtype)
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return attend(q_BxKxGxD, cache.k, cache.v, position_B)
    spec = cache_spec(mesh, *cache.k.shape[:2])
    rows = jax.sharding.PartitionSpec(spec[0])
    mapped = jax.shard_map(attend, in_specs=(spec, spec, spec, rows), out_specs=spec, check_vma=False)
    return mapped(q_BxKxGxD, cache.k, cache.v, position_B)


def _attend(
    q_BxKxGxD: jax.Array,
    k_BxKxDxC: jax.Array,
    v_BxKxCxD: jax.Array,
    position_B: jax.Array,
    *,
    rule: Scores,
    window: int,
    interpret: bool,
) -> jax.Array:
    from jax.experimental import pallas as pl  # here: nobody else needs Pallas
    from jax.experimental.pallas import tpu as pltpu

    B, K, G, D = q_BxKxGxD.shape
    C = k_BxKxDxC.shape[-1]
    S = next(size for size in _BLOCKS if C % size == 0)
    position_B = jnp.where(position_B < C, position_B, 0).astype(jnp.int32)  # an idle row takes one block
    last_B = position_B // S
    first_B = jnp.maximum(position_B - window + 1, 0) // S if window else jnp.zeros_like(last_B)

    def kernel(position_B, first_B, last_B, q_ref, k_ref, v_ref, out_ref, top_ref, mass_ref, sum_ref):
        row, i = pl.program_id(0), pl.program_id(2)
        at = first_B[row] + i

        @pl.when(i == 0)
        def begin():
            top_ref[...] = jnp.full_like(top_ref, MASKED)
            mass_ref[...] = jnp.zeros_like(mass_ref)
            sum_ref[...] = jnp.zeros_like(sum_ref)

        @pl.when(at <= last_B[row])
        def add():
            scores_GxS = rule.cap(jnp.dot(q_ref[...], k_ref[...], preferred_element_type=jnp.float32))
            key = at * S + jax.lax.broadcasted_iota(jnp.int32, scores_GxS.shape, 1)
            scores_GxS = jnp.where(visible(position_B[row], key, window, bool(window)), scores_GxS, MASKED)
            top_Gx1 = jnp.maximum(top_ref[...], jnp.max(scores_GxS, axis=1, keepdims=True))
            weights_GxS = jnp.exp(scores_GxS - top_Gx1)
            shrink_Gx1 = jnp.exp(top_ref[...] - top_Gx1)
            mass_ref[...] = mass_ref[...] * shrink_Gx1 + jnp.sum(weights_GxS, axis=1, keepdims=True)
            weighted_GxD = jnp.dot(weights_GxS.astype(v_ref.dtype), v_ref[...], preferred_element_type=jnp.float32)
            sum_ref[...] = sum_ref[...] * shrink_Gx1 + weighted_GxD
            top_ref[...] = top_Gx1

        @pl.when(i == pl.num_programs(2) - 1)
        def end():
            out_ref[...] = sum_ref[...] / mass_ref[...]

    def block(row, i, first_B, last_B):
        return jnp.minimum(first_B[row] + i, last_B[row])  # beyond the last the same again, which is not fetched anew

    heads = pl.BlockSpec((None, None, G, D), lambda b, h, i, *_: (b, h, 0, 0))
    return pl.pallas_call(
        kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=3,
            grid=(B, K, C // S),
            in_specs=[
                heads,
                pl.BlockSpec((None, None, D, S), lambda b, h, i, _, *ends: (b, h, 0, block(b, i, *ends))),
                pl.BlockSpec((None, None, S, D), lambda b, h, i, _, *ends: (b, h, block(b, i, *ends), 0)),
            ],
            out_specs=heads,
            scratch_shapes=[pltpu.VMEM((G, 1), jnp.float32), pltpu.VMEM((G, 1), jnp.float32)]
            + [pltpu.VMEM((G, D), jnp.float32)],
        ),
        out_shape=jax.ShapeDtypeStruct((B, K, G, D), jnp.float32),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        interpret=interpret,
    )(position_B, first_B, last_B, q_BxKxGxD, k_BxKxDxC, v_BxKxCxD)
