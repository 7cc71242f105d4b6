"""Supervised learning on weighted tokens: the warm start's step.

Axes: B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from spade_jax.learner import partitioning
from spade_jax.learner.logprobs import model_logprobs
from spade_jax.learner.state import TrainState, state_shardings
from spade_jax.policy.decoder import Decoder

Step = Callable[[TrainState, np.ndarray, np.ndarray], tuple[TrainState, dict[str, jax.Array]]]


def supervised_loss(
    model: Decoder, params: Any, tokens_BxT: jax.Array, weights_BxT: jax.Array, *, chunk: int = 64
) -> jax.Array:
    """Sum over tokens of weight times cross-entropy in nats.

    weights_BxT[b, t] is the weight of predicting tokens_BxT[b, t] from what precedes it; index 0 counts for
    nothing, since nothing precedes it.
    """
    positions_BxT = jnp.broadcast_to(jnp.arange(tokens_BxT.shape[1], dtype=jnp.int32), tokens_BxT.shape)
    logp_BxT, _ = model_logprobs(model, params, tokens_BxT, positions_BxT, chunk=chunk, with_entropy=False)
    return -jnp.sum(logp_BxT * weights_BxT)


def make_supervised_step(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    rules: partitioning.Rules = partitioning.DEFAULT_RULES,
    micro_batches: int = 1,
    chunk: int = 64,
) -> Step:
    """step(state, int32[B, T] tokens, float32[B, T] weights) -> (state, metrics); the given state is consumed.

    Each process passes its own rows. The loss is the weighted mean over the whole batch; `micro_batches` (a divisor
    of B) only bounds the memory, and on a CPU makes better use of its caches. Metrics (`loss` in nats a token,
    `grad_norm`, `tokens`) stay on the device, so that the host can dispatch the next step before it reads them.
    """
    shardings = state_shardings(model, optimizer, mesh, rules)
    rows, whole = partitioning.batch_sharding(mesh), partitioning.replicated(mesh)

    @functools.partial(
        jax.jit, donate_argnums=0, in_shardings=(shardings, rows, rows), out_shardings=(shardings, whole)
    )
    def update(state: TrainState, tokens_BxT: jax.Array, weights_BxT: jax.Array) -> tuple[TrainState, dict]:
        weights_BxT = weights_BxT.at[:, 0].set(0.0)
        total = jnp.sum(weights_BxT)

        def split(x: jax.Array) -> jax.Array:
            # Rows i, i + M, i + 2M, ... make micro-batch i: every device keeps the rows that it holds.
            parts = x.reshape(x.shape[0] // micro_batches, micro_batches, x.shape[1]).swapaxes(0, 1)
            return lax.with_sharding_constraint(parts, partitioning.batch_sharding(mesh, row_axis=1))

        def one(carry: tuple[jax.Array, Any], part: tuple[jax.Array, jax.Array]) -> tuple[tuple[jax.Array, Any], None]:
            loss_fn = functools.partial(supervised_loss, model, chunk=chunk)
            return jax.tree.map(jnp.add, carry, jax.value_and_grad(loss_fn)(state.params, *part)), None

        zero = (jnp.zeros(()), jax.tree.map(jnp.zeros_like, state.params))
        (loss, grads), _ = lax.scan(one, zero, (split(tokens_BxT), split(weights_BxT)))
        scale = 1.0 / jnp.maximum(total, 1e-9)
        grads = jax.tree.map(lambda g: g * scale, grads)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss * scale, "grad_norm": optax.global_norm(grads), "tokens": total}
        return state._replace(params=params, opt_state=opt_state, step=state.step + 1), metrics

    def step(state: TrainState, tokens_BxT: np.ndarray, weights_BxT: np.ndarray) -> tuple[TrainState, dict]:
        host = (np.asarray(tokens_BxT, np.int32), np.asarray(weights_BxT, np.float32))
        if len(host[0]) * jax.process_count() % (micro_batches * partitioning.batch_shards(mesh)):
            raise ValueError(
                f"{len(host[0])} rows in each of {jax.process_count()} processes do not split into "
                f"micro_batches={micro_batches} over mesh data*fsdp={partitioning.batch_shards(mesh)}; "
                "change the batch size"
            )
        with partitioning.activate(mesh, rules), jax.transfer_guard("disallow"):
            return update(state, *partitioning.global_rows(mesh, host))

    return step
