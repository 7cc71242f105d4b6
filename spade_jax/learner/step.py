"""One update: score pi_old, accumulate gradients over micro-batches, apply.

Axes: M micro-batches of a stack, B rows, T tokens.

The host walks over minibatches (one optimiser step each) and their stacks (one per bucket length). A stack is one call
of one compiled function, which loops over its micro-batches on the device.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh

from spade_jax.learner import partitioning
from spade_jax.learner.batch import Stack
from spade_jax.learner.logprobs import model_logprobs, routed_logprobs
from spade_jax.learner.objective import ObjectiveConfig, Sums, gradient_variance, policy_loss
from spade_jax.learner.state import TrainState, abstract_params, param_shardings, split_trained, state_shardings
from spade_jax.policy import experts, join_params
from spade_jax.policy.decoder import Decoder
from spade_jax.structs import Batch

Update = Callable[..., tuple[TrainState, dict[str, float]]]


@dataclasses.dataclass(frozen=True)
class UpdateConfig:
    """Attributes:
    objective: the loss.
    epochs: passes over the minibatches; an update makes epochs * minibatches optimiser steps.
    trust_behaviour_logp: take the sampler's log-probs for log pi_old instead of recomputing them. Sound only where a
      test shows the two equal and nothing is sampled ahead. The first optimiser step needs neither: there the
      policy still is pi_old.
    chunk: time steps of logits that exist at once.
    router_balance: weight of `policy.experts.balance_loss`, taken over each micro-batch.
    """

    objective: ObjectiveConfig = ObjectiveConfig()
    epochs: int = 1
    trust_behaviour_logp: bool = False
    chunk: int = 64
    router_balance: float = 0.0


def _micro_batch(mesh: Mesh, tree: Any, i: jax.Array) -> Any:
    picked = jax.tree.map(lambda x: lax.dynamic_index_in_dim(x, i, keepdims=False), tree)
    return lax.with_sharding_constraint(picked, partitioning.batch_sharding(mesh))


def _counted(batch: Batch) -> jax.Array:
    """bool[B, T], the tokens that are in the loss."""
    return batch.loss_mask & (batch.weight > 0)[:, None]


# The loops run to a traced count, not over all M of a stack: filling micro-batches cost nothing, and a step with one
# micro-batch more compiles nothing new. Gradients are taken inside the loop, so it need not be differentiable.


def make_accumulate(
    model: Decoder, mesh: Mesh, config: UpdateConfig, *, rules: partitioning.Rules = partitioning.DEFAULT_RULES
) -> Callable[..., tuple[Any, Sums]]:
    """The jitted function in which an update spends its time and memory; the planner compiles it, too."""
    routed = model.config.num_experts > 0
    grad_shardings, _ = split_trained(model, param_shardings(model, mesh, rules))

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=(grad_shardings, partitioning.replicated(mesh)))
    def accumulate(
        carry: tuple[Any, Sums],
        state: TrainState,
        stack: Stack,
        old_MxBxT: jax.Array,
        reference_MxBxT: jax.Array | None,
        fresh: jax.Array,
    ) -> tuple[Any, Sums]:
        """Adds a stack's undivided gradient and sums to the carry. `fresh`: the policy still is pi_old."""

        def one(i: jax.Array, carry: tuple[Any, Sums]) -> tuple[Any, Sums]:
            batch, old_BxT, reference_BxT = _micro_batch(mesh, (stack.batch, old_MxBxT, reference_MxBxT), i)
            trained, frozen = split_trained(model, state.params)

            def loss_fn(trained: Any) -> tuple[jax.Array, Sums]:
                params = join_params(trained, frozen)
                router, inputs = None, (batch.tokens, batch.positions, batch.temperature, _counted(batch))
                if routed:
                    logp_BxT, entropy_BxT, router = routed_logprobs(model, params, *inputs, chunk=config.chunk)
                else:
                    logp_BxT, entropy_BxT = model_logprobs(model, params, *inputs, chunk=config.chunk)
                sums = policy_loss(
                    logp_BxT,
                    entropy_BxT,
                    jnp.where(fresh, lax.stop_gradient(logp_BxT), old_BxT),
                    batch,
                    config.objective,
                    step=state.step,
                    reference_logp_BxT=reference_BxT,
                )
                if not routed:
                    return sums.loss, sums
                # The gradient is divided by the normaliser in the end; so weighted, this loss is a mean, too.
                balance = config.router_balance * experts.balance_loss(router) * sums.normaliser
                return sums.loss + balance, sums._replace(router=router)

            grads, sums = jax.grad(loss_fn, has_aux=True)(trained)
            squares = optax.global_norm(grads) ** 2 / jnp.maximum(sums.normaliser, 1.0)
            sums = sums._replace(squares=squares)
            return jax.tree.map(jnp.add, carry[0], grads), carry[1].add(sums)

        return lax.fori_loop(0, stack.count, one, carry)

    return accumulate


def make_update(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    config: UpdateConfig,
    *,
    rules: partitioning.Rules = partitioning.DEFAULT_RULES,
    launching: contextlib.AbstractContextManager | None = None,
) -> Update:
    """Builds `update(state, minibatches, reference=None) -> (state, metrics)`.

    The update consumes (donates) the given state. `minibatches` is what `batch.pack` made of the trajectories, the same
    in every process: each puts its own devices' rows there. `reference` is what is trained (`state.split_trained`)
    of the policy that the divergence is from. An update without any row changes nothing but the step counter. Metrics
    are floats under their TensorBoard tags, averaged over the update. `launching`: as in `sampler.Engine`, a lock where
    a sampler draws on the same devices while the update is made.

    The update raises:
      FloatingPointError: the loss or the gradient of an optimiser step is not finite; that step is not applied.
    """
    routed = model.config.num_experts > 0
    grad_shardings, _ = split_trained(model, param_shardings(model, mesh, rules))
    full_shardings = state_shardings(model, optimizer, mesh, rules)
    whole = partitioning.replicated(mesh)
    stacked = partitioning.batch_sharding(mesh, row_axis=1)
    accumulate = make_accumulate(model, mesh, config, rules=rules)

    @functools.partial(jax.jit, out_shardings=stacked)
    def score(params: Any, stack: Stack) -> jax.Array:
        """float32[M, B, T] log-probs under `params` of a stack's tokens that are in the loss."""

        def one(i: jax.Array, logp_MxBxT: jax.Array) -> jax.Array:
            b = _micro_batch(mesh, stack.batch, i)
            inputs = b.tokens, b.positions, b.temperature, _counted(b)
            logp_BxT, _ = model_logprobs(model, params, *inputs, chunk=config.chunk, with_entropy=False)
            return lax.dynamic_update_index_in_dim(logp_MxBxT, logp_BxT, i, 0)

        return lax.fori_loop(0, stack.count, one, jnp.zeros(stack.batch.tokens.shape, jnp.float32))

    @functools.partial(jax.jit, out_shardings=(grad_shardings, whole))
    def empty() -> tuple[Any, Sums]:
        shape = (model.config.num_layers, 2, model.config.num_experts) if routed else None
        trained, _ = split_trained(model, abstract_params(model))
        return jax.tree.map(lambda s: jnp.zeros(s.shape, jnp.float32), trained), Sums.zero(shape)

    @functools.partial(jax.jit, out_shardings=whole)
    def measure(carry: tuple[Any, Sums]) -> tuple[jax.Array, Sums]:
        grads, sums = carry
        return optax.global_norm(grads) / jnp.maximum(sums.normaliser, 1.0), sums

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=full_shardings)
    def apply(state: TrainState, carry: tuple[Any, Sums]) -> TrainState:
        grads, sums = carry
        grads = jax.tree.map(lambda g: g / jnp.maximum(sums.normaliser, 1.0), grads)
        trained, frozen = split_trained(model, state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, trained)
        params = join_params(optax.apply_updates(trained, updates), frozen)
        return state._replace(params=params, opt_state=opt_state)

    @functools.partial(jax.jit, donate_argnums=0, out_shardings=full_shardings)
    def advance(state: TrainState) -> TrainState:
        return state._replace(step=state.step + 1)

    launching = launching or contextlib.nullcontext()

    def launched(function: Callable[..., Any]) -> Callable[..., Any]:
        def launch(*args: Any) -> Any:
            with launching:
                return function(*args)

        return launch

    score, empty, accumulate, measure, apply, advance = map(
        launched, (score, empty, accumulate, measure, apply, advance)
    )

    def to_device(stack: Stack) -> Stack:
        shardings = Stack(jax.tree.map(lambda _: stacked, stack.batch), whole)
        return partitioning.global_copies(mesh, stack, shardings)

    def update(
        state: TrainState, minibatches: Sequence[Sequence[Stack]], reference: Any = None
    ) -> tuple[TrainState, dict[str, float]]:
        with partitioning.activate(mesh, rules), jax.transfer_guard("disallow"):
            number = int(jax.device_get(state.step))
            parts = [[to_device(stack) for stack in stacks] for stacks in minibatches if stacks]
            olds = [[stack.batch.behaviour_logp for stack in stacks] for stacks in parts]
            if not config.trust_behaviour_logp:
                # All of pi_old before the first step changes the policy; a single visit to the first minibatch,
                # made while the policy still is pi_old, does without.
                start = 1 if config.epochs == 1 else 0
                olds[start:] = [[score(state.params, stack) for stack in stacks] for stacks in parts[start:]]
            references = [[None] * len(stacks) for stacks in parts]
            if reference is not None:
                params = join_params(reference, split_trained(model, state.params)[1])
                references = [[score(params, stack) for stack in stacks] for stacks in parts]
            yes, no = partitioning.global_copies(mesh, (np.array(True), np.array(False)))
            history: list[tuple[float, Sums]] = []
            for _ in range(config.epochs):
                for stacks, old, reference in zip(parts, olds, references, strict=True):
                    carry = empty()
                    for inputs in zip(stacks, old, reference, strict=True):
                        carry = accumulate(carry, state, *inputs, no if history else yes)
                    grad_norm, sums = jax.device_get(measure(carry))
                    if not (math.isfinite(grad_norm) and math.isfinite(sums.loss)):
                        raise FloatingPointError(
                            f"update {number}, optimiser step {len(history)}: loss {float(sums.loss)}, gradient norm "
                            f"{float(grad_norm)} is not finite; lower the learning rate, or resume from the last "
                            "checkpoint with another seed"
                        )
                    history.append((float(grad_norm), sums))
                    state = apply(state, carry)
            state = advance(state)
        total = functools.reduce(Sums.add, (sums for _, sums in history)) if history else Sums.zero()
        metrics = total.metrics()
        if config.trust_behaviour_logp and history:
            # Later steps compare the sampler's log-probs with themselves.
            metrics["learner/logp_gap_mean"] = history[0][1].metrics()["learner/logp_gap_mean"]
        metrics["learner/grad_norm"] = float(np.mean([norm for norm, _ in history])) if history else 0.0
        variances = [gradient_variance(*one) for one in history]
        if np.isfinite(variances).any():
            metrics["learner/grad_variance"] = float(np.nanmean(variances))
        return state, metrics

    return update
