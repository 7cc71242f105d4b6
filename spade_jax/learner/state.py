"""The train state and the optimiser: shapes first, then shardings, then one jit that makes every leaf.

Nothing here exists unsharded, not even for a moment, and every leaf (the key too) is a global array made inside a
jit: that is what checkpoints across processes need.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from optax.contrib import MuonDimensionNumbers, muon

from spade_jax.learner import partitioning
from spade_jax.policy import join_params, split_adapters
from spade_jax.policy.decoder import Decoder
from spade_jax.policy.params import init_params, logical_specs
from spade_jax.policy.weights import LazyParameter


class TrainState(NamedTuple):
    """All that an update reads and writes; a pytree of global arrays.

    Attributes:
      params: plain dict of the policy's parameters.
      opt_state: the optimiser's state, of the parameters that are trained.
      step: int32[], updates made so far; the version that stamps sampled tokens.
      key: typed PRNG key of the run.
      baselines: float32[K], the `ema` estimator's table.
    """

    params: Any
    opt_state: Any
    step: jax.Array
    key: jax.Array
    baselines: jax.Array


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """AdamW or Muon with warm-up and global-norm clipping.

    Attributes:
      kind: "adamw", or "muon" (Jordan et al. 2024): momentum orthogonalised by Newton-Schulz for the matrices of the
        layers, scaled so that its learning rate compares with AdamW's (arXiv:2502.16982), AdamW for the rest.
      learning_rate: the peak.
      schedule: "constant", or "cosine" to `final_fraction` of the peak at `total_steps`.
      warmup_steps: linear warm-up from 0, in optimiser steps.
      total_steps: length of a cosine schedule in optimiser steps, warm-up included.
      b1, b2, eps: Adam's.
      weight_decay: decoupled; matrices only, never norms or biases.
      clip_norm: largest global gradient norm; 0 clips nothing.
    """

    kind: str = "adamw"
    learning_rate: float = 1e-6
    schedule: str = "constant"
    warmup_steps: int = 0
    total_steps: int = 0
    final_fraction: float = 0.1
    b1: float = 0.9
    b2: float = 0.98
    eps: float = 1e-8
    weight_decay: float = 0.1
    clip_norm: float = 1.0


def make_schedule(config: OptimizerConfig) -> optax.Schedule:
    """Optimiser step -> learning rate.

    Raises:
      ValueError: an unknown schedule, or a cosine that ends within its warm-up.
    """
    peak = config.learning_rate
    if config.schedule == "cosine":
        if config.total_steps <= config.warmup_steps:
            raise ValueError(
                f"optimizer.total_steps={config.total_steps} leaves no step after "
                f"optimizer.warmup_steps={config.warmup_steps}; raise total_steps"
            )
        body = optax.cosine_decay_schedule(peak, config.total_steps - config.warmup_steps, config.final_fraction)
    elif config.schedule == "constant":
        body = optax.constant_schedule(peak)
    else:
        raise ValueError(f"optimizer.schedule={config.schedule!r} is unknown; use 'constant' or 'cosine'")
    if not config.warmup_steps:
        return body
    # The first step is at peak / warmup_steps: a step at rate 0 would be wasted.
    ramp = optax.linear_schedule(peak / config.warmup_steps, peak, max(config.warmup_steps - 1, 1))
    return optax.join_schedules([ramp, body], [config.warmup_steps])


def split_trained(model: Decoder, tree: Any) -> tuple[Any, Any]:
    """(what is trained, what is frozen) of a tree like that of the parameters; `join_params` is the inverse."""
    return (tree, {}) if model.config.lora is None else split_adapters(tree)


def _trained_specs(model: Decoder) -> Any:
    return split_trained(model, logical_specs(model))[0]


def decay_mask(model: Decoder) -> Any:
    """Of the trained parameters, True for those that weight decay shrinks: two or more axes besides the layer stack."""
    return jax.tree.map(
        lambda spec: sum(name != "layers" for name in spec) >= 2,
        _trained_specs(model),
        is_leaf=lambda x: isinstance(x, PartitionSpec),
    )


def _matrix_axes(spec: PartitionSpec) -> MuonDimensionNumbers | None:
    """Which axes of a layer's weight are its input and output; None for what is no layer's matrix.

    The axis "embed" is one side, whatever else there is the other: queries map embed to (heads, head_dim), the
    output projection maps them back. Layers and experts are stacked in front and orthogonalised one by one.
    """
    axes = [i for i, name in enumerate(spec) if name not in ("layers", "experts")]
    if "vocab" in spec or "embed" not in spec or len(axes) < 2:
        return None
    embed = spec.index("embed")
    others = tuple(i for i in axes if i != embed)
    return MuonDimensionNumbers((embed,), others) if embed == axes[0] else MuonDimensionNumbers(others, (embed,))


def make_optimizer(config: OptimizerConfig, model: Decoder) -> optax.GradientTransformation:
    """The optimiser of `config`, over the fp32 master weights that are trained.

    Raises:
      ValueError: an unknown kind or schedule.
    """
    schedule = make_schedule(config)
    if config.kind == "adamw":
        update = optax.adamw(
            schedule,
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=decay_mask(model),
        )
    elif config.kind == "muon":
        axes = jax.tree.map(_matrix_axes, _trained_specs(model), is_leaf=lambda x: isinstance(x, PartitionSpec))
        update = muon(
            schedule,
            weight_decay=config.weight_decay,
            adam_b1=config.b1,
            adam_b2=config.b2,
            adam_learning_rate=schedule,
            muon_weight_dimension_numbers=lambda params: axes,
            consistent_rms=0.2,
        )
    else:
        raise ValueError(f"optimizer.kind={config.kind!r} is unknown; use 'adamw' or 'muon'")
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), update) if config.clip_norm else update


def abstract_params(model: Decoder) -> Any:
    """The parameter tree as shapes and dtypes; allocates nothing."""
    return jax.eval_shape(lambda: init_params(model, jax.random.key(0)))


def param_shardings(model: Decoder, mesh: Mesh, rules: partitioning.Rules = partitioning.DEFAULT_RULES) -> Any:
    """NamedShardings of the policy's parameters (and of their gradients, and of each Adam moment)."""
    return partitioning.tree_shardings(logical_specs(model), abstract_params(model), mesh, rules)


def state_shardings(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    rules: partitioning.Rules = partitioning.DEFAULT_RULES,
) -> TrainState:
    """A TrainState of NamedShardings: moments follow their parameter, the rest is replicated."""
    params = param_shardings(model, mesh, rules)
    whole = partitioning.replicated(mesh)
    by_path = dict(jax.tree_util.tree_leaves_with_path(params))
    shapes = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(abstract_params(model))}

    def like_its_parameter(path: tuple, leaf: Any) -> Any:
        # A moment sits at its parameter's path below some wrapper of the optimiser's own, whichever that is.
        for start in range(len(path)):
            if shapes.get(path[start:]) == leaf.shape:
                return by_path[path[start:]]
        return whole

    trained, _ = split_trained(model, abstract_params(model))
    opt_state = jax.tree_util.tree_map_with_path(like_its_parameter, jax.eval_shape(optimizer.init, trained))
    return TrainState(params, opt_state, whole, whole, whole)


def init_state(
    model: Decoder,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    *,
    seed: int,
    num_baselines: int = 1,
    params: Any = None,
    rules: partitioning.Rules = partitioning.DEFAULT_RULES,
) -> TrainState:
    """A fresh sharded train state.

    Args:
      params: host arrays of a trained policy to start from (every process passes the same), or parameters that are
        read when they are indexed; None draws new ones. Adapters are always new: they begin by adding nothing.

    Raises:
      ValueError: the tree or a shape of `params` is not this model's.
    """
    shardings = state_shardings(model, optimizer, mesh, rules)
    shapes = abstract_params(model)

    def build(params: Any) -> TrainState:
        key = jax.random.key(seed)
        fresh = init_params(model, key)
        if params is None:
            params = fresh
        elif model.config.lora is not None:
            params = join_params(split_trained(model, fresh)[0], params)
        params = jax.tree.map(lambda p, s: p.astype(s.dtype), params, shapes)
        baselines = jnp.zeros((num_baselines,), jnp.float32)
        opt_state = optimizer.init(split_trained(model, params)[0])
        return TrainState(params, opt_state, jnp.zeros((), jnp.int32), key, baselines)

    with partitioning.activate(mesh, rules):
        if params is None:
            return jax.jit(lambda: build(None), out_shardings=shardings)()
        _check_like(params, _given(model, shapes))
        places = _given(model, shardings.params)
        on_device = partitioning.global_copies(mesh, params, places)
        # What was read for this alone is not kept twice.
        ours = (0,) if all(isinstance(leaf, LazyParameter) for leaf in jax.tree.leaves(params)) else ()
        make = jax.jit(build, in_shardings=(places,), out_shardings=shardings, donate_argnums=ours)
        return make(on_device)


def _given(model: Decoder, tree: Any) -> Any:
    """The part of a tree like that of the parameters that a policy to start from has."""
    return tree if model.config.lora is None else split_adapters(tree)[1]


def copy_params(params: Any) -> Any:
    """The same parameters in buffers of their own, which an update that donates the originals leaves alone."""
    return jax.jit(lambda tree: jax.tree.map(jnp.copy, tree), out_shardings=jax.tree.map(lambda p: p.sharding, params))(
        params
    )


def _check_like(params: Any, shapes: Any) -> None:
    given = {jax.tree_util.keystr(k): tuple(v.shape) for k, v in jax.tree_util.tree_leaves_with_path(params)}
    wanted = {jax.tree_util.keystr(k): tuple(v.shape) for k, v in jax.tree_util.tree_leaves_with_path(shapes)}
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            raise ValueError(
                f"parameter {name} has shape {given.get(name)} but the model needs {wanted.get(name)}; "
                "load weights that were saved with this model config"
            )
