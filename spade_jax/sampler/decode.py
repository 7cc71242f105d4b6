"""Prefill, decode and row copies: pure functions on a cache of slots.

A slot's row of the cache is left-aligned: index c holds the keys and values of the
conversation's token c. Each function works on the first `window` positions only, a
power of two that covers the live tokens, so cost follows live length, not the limit.

On a mesh a device may hold a share of the slots only. Rows never leave it: the rows of a prefill or of a copy come in
equal parts, one for each share, and a row's slot is counted from the begin of its share.

Axis legend: S slots, C context, R rows of a call, P tokens per row of a prefill, W steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from spade_jax.policy import Decoder, KVCache
from spade_jax.sampler.sampling import SamplingArrays, draw

Cache = tuple[KVCache, ...]  # one per layer: a decode step then updates each in place


class SlotState(NamedTuple):
    """What a decode block needs to know of the slots it draws in: all S, or R of them.

    Attributes:
      token: int32[R], the conversation's last token; not in the cache yet.
      position: int32[R], its index in the conversation.
      remaining: int32[R], tokens still to draw; 0 for an idle slot.
      seed: uint32[R, 2], hash of the conversation's id.
      settings: how to draw.
    """

    token: np.ndarray | jax.Array
    position: np.ndarray | jax.Array
    remaining: np.ndarray | jax.Array
    seed: np.ndarray | jax.Array
    settings: SamplingArrays


def shares(sharding: NamedSharding | None) -> int:
    """Among how many devices (or groups of devices that split the heads) the slots are split."""
    if sharding is None:
        return 1
    (axes, _) = sharding.spec
    return math.prod(sharding.mesh.shape[axis] for axis in axes or ())


def _constrain(cache: Cache, sharding: NamedSharding | None) -> Cache:
    return cache if sharding is None else jax.lax.with_sharding_constraint(cache, sharding)


def _read(cache: Cache, window: int) -> Cache:
    """The first `window` positions of all rows."""
    if window == cache[0].context:
        return cache
    return tuple(KVCache(layer.k[..., :window], layer.v[..., :window, :]) for layer in cache)


def _write(cache: Cache, part: Cache) -> Cache:
    """Inverse of `_read`."""
    if part[0].context == cache[0].context:
        return part
    update = functools.partial(jax.lax.dynamic_update_slice, start_indices=(0, 0, 0, 0))
    return jax.tree.map(update, cache, part)


def _by_share(function: Callable, sharding: NamedSharding | None, *in_specs: Any) -> Callable:
    """A function of caches and of rows, on each device with the share of them that it holds."""
    if shares(sharding) == 1:
        return function
    # XLA by itself would send whole rows of the cache to all devices.
    return jax.shard_map(
        function, mesh=sharding.mesh, in_specs=in_specs, out_specs=sharding.spec, check_vma=False
    )


def _gather(cache: Cache, rows_R: jax.Array, window: int, sharding: NamedSharding | None = None) -> Cache:
    """The first `window` positions of some rows."""

    def gather(cache: Cache, rows_R: jax.Array) -> Cache:
        # Cut before rows are picked, and without a look for indices beyond the cache, whose rows nobody uses: a block
        # of one step takes .96 of the time on a CPU.
        def pick(positions: jax.Array) -> jax.Array:
            return positions.at[rows_R].get(mode="clip")

        return tuple(KVCache(pick(layer.k[..., :window]), pick(layer.v[:, :, :window])) for layer in cache)

    spec = PartitionSpec() if sharding is None else sharding.spec
    return _by_share(gather, sharding, spec, PartitionSpec(*spec[:1]))(cache, rows_R)


def _scatter(cache: Cache, rows_R: jax.Array, part: Cache, sharding: NamedSharding | None = None) -> Cache:
    """Inverse of `_gather`; a row index beyond the cache (padding) writes nothing."""
    window = part[0].context

    def scatter(cache: Cache, rows_R: jax.Array, part: Cache) -> Cache:
        return tuple(
            KVCache(
                k=layer.k.at[rows_R, :, :, :window].set(new.k, mode="drop"),
                v=layer.v.at[rows_R, :, :window].set(new.v, mode="drop"),
            )
            for layer, new in zip(cache, part, strict=True)
        )

    spec = PartitionSpec() if sharding is None else sharding.spec
    return _by_share(scatter, sharding, spec, PartitionSpec(*spec[:1]), spec)(cache, rows_R, part)


def _scatter_new(
    cache: Cache,
    rows_R: jax.Array,
    part: Cache,
    starts_R: jax.Array,
    count: int,
    sharding: NamedSharding | None = None,
) -> Cache:
    """As `_scatter`, of the `count` positions from each row's start on only: all that a call has changed."""
    window = part[0].context
    count = min(count, window)

    def scatter(cache: Cache, rows_R: jax.Array, part: Cache, starts_R: jax.Array) -> Cache:
        starts_R = jnp.minimum(starts_R, window - count)
        at_Rx2 = jnp.stack([rows_R, starts_R], axis=1)

        def update(whole: jax.Array, part: jax.Array, axis: int) -> jax.Array:
            cut = jax.vmap(lambda row, start: jax.lax.dynamic_slice_in_dim(row, start, count, axis - 1))(part, starts_R)
            numbers = jax.lax.ScatterDimensionNumbers((1, 2, 3), (0,), (0, axis))  # a row, from a position on
            return jax.lax.scatter(whole, at_Rx2, cut, numbers, unique_indices=True, mode="drop")

        return tuple(
            KVCache(update(layer.k, new.k, 3), update(layer.v, new.v, 2))
            for layer, new in zip(cache, part, strict=True)
        )

    spec = PartitionSpec() if sharding is None else sharding.spec
    rows = PartitionSpec(*spec[:1])
    return _by_share(scatter, sharding, spec, rows, spec, rows)(cache, rows_R, part, starts_R)


@functools.partial(jax.jit, static_argnames=("model", "window", "sharding"), donate_argnames="cache")
def prefill(
    model: Decoder,
    params: Any,
    cache: Cache,
    tokens_RxP: jax.Array,
    slots_R: jax.Array,
    starts_R: jax.Array,
    counts_R: jax.Array,
    *,
    window: int,
    sharding: NamedSharding | None = None,
) -> Cache:
    """Writes keys and values of the next tokens of some conversations.

    Args:
      model: the decoder with `unrolled=True`: a scan would copy each layer's weights, as many bytes as they are read.
      params: its parameters, `unrolled_params` of the scanned decoder's.
      cache: per-layer caches of all slots; donated.
      tokens_RxP: int32[R, P], padded on the right.
      slots_R: int32[R], distinct within a share, counted from its begin; past its end for a padding row.
      starts_R: int32[R], position of each row's first token.
      counts_R: int32[R], number of real tokens of each row.
      window: cache positions in use, at least max(starts + counts).
      sharding: of every cache leaf, or None off a mesh.
    """
    column = jnp.arange(tokens_RxP.shape[1])
    positions = jnp.where(column < counts_R[:, None], starts_R[:, None] + column, window)
    rows = _gather(cache, slots_R, window, sharding)
    _, rows = model.apply({"params": params}, tokens_RxP, positions, rows)
    return _constrain(_scatter_new(cache, slots_R, rows, starts_R, tokens_RxP.shape[1], sharding), sharding)


@functools.partial(jax.jit, static_argnames=("window", "sharding"), donate_argnames="cache")
def copy_rows(
    cache: Cache,
    sources_R: jax.Array,
    targets_R: jax.Array,
    *,
    window: int,
    sharding: NamedSharding | None = None,
) -> Cache:
    """Copies the first `window` positions of rows `sources` to rows `targets` of the same share; cache is donated.

    A target past its share's end (padding) writes nothing.
    """
    return _constrain(_scatter(cache, targets_R, _gather(cache, sources_R, window, sharding), sharding), sharding)


@functools.partial(jax.jit, static_argnames=("model", "steps", "window", "sharding"), donate_argnames="cache")
def decode_block(
    model: Decoder,
    params: Any,
    cache: Cache,
    state: SlotState,
    slots_R: jax.Array | None,
    run_key: jax.Array,
    stop_token: int | jax.Array,
    least: int | jax.Array = 1,
    *,
    steps: int,
    window: int,
    sharding: NamedSharding | None = None,
) -> tuple[Cache, jax.Array, jax.Array]:
    """Draws up to `steps` tokens in all or some slots; ends early when fewer than `least` of them are busy.

    The key of a token is folded from the run's key, the conversation's seed and the
    token's position, so that a draw depends on neither slot, batch nor timing.

    Args:
      model, params: as for `prefill`.
      cache: per-layer caches of all slots; donated.
      state: the slots to draw in.
      slots_R: int32[R], which they are, distinct; >= S for a padding row. None: all of them, in order.
      run_key: key of the run.
      stop_token: ends a response.
      least: at least 1; a traced number, which compiles nothing.
      steps: W.
      window: cache positions in use, at least max(position + min(steps, remaining)) over busy slots.
      sharding: of every cache leaf, or None off a mesh.

    Returns:
      (cache, int32[R, W] tokens with -1 where none was drawn, float32[R, W] log-probs).
    """
    fold = jax.vmap(jax.random.fold_in)
    keys_R = fold(fold(jnp.broadcast_to(run_key, state.token.shape), state.seed[:, 0]), state.seed[:, 1])

    def busy(carry):
        step, _, _, _, remaining, _, _ = carry
        return (step < steps) & (jnp.sum(remaining > 0) >= least)

    def advance(carry):
        step, live, token, position, remaining, tokens, logps = carry
        active = remaining > 0
        # An idle slot's query stands outside the window: it writes nothing and its output is unused.
        at = jnp.where(active, position, window)[:, None]
        hidden, live = model.apply({"params": params}, token[:, None], at, live)
        logits = model.apply({"params": params}, hidden[:, 0], method="head")
        uniform = jax.vmap(jax.random.uniform)(fold(keys_R, position + 1))
        drawn, logp = draw(logits, state.settings, uniform)
        tokens = tokens.at[:, step].set(jnp.where(active, drawn, -1))
        logps = logps.at[:, step].set(jnp.where(active, logp, 0.0))
        token = jnp.where(active, drawn, token)
        position = position + active
        remaining = jnp.where(active & (drawn != stop_token), remaining - 1, 0)
        return step + 1, live, token, position, remaining, tokens, logps

    rows = state.token.shape[0]
    outputs = jnp.full((rows, steps), -1, jnp.int32), jnp.zeros((rows, steps), jnp.float32)
    live = _read(cache, window) if slots_R is None else _gather(cache, slots_R, window)
    carry = (0, live, state.token, state.position, state.remaining, *outputs)
    _, live, _, _, _, tokens, logps = jax.lax.while_loop(busy, advance, carry)
    whole = slots_R is None
    cache = _write(cache, live) if whole else _scatter_new(cache, slots_R, live, state.position, steps)
    return _constrain(cache, sharding), tokens, logps
