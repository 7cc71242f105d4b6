"""Low-rank adapters: which parameters they are, and what becomes of the weights that they are added to.

An adapter of a weight `w` is two parameters beside it, `w_lora_a` and `w_lora_b`, whose product times alpha / rank is
added to it (Hu et al. 2021, arXiv:2106.09685). The learner trains them alone and leaves them apart; for sampling and
export they are added up.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import traverse_util

from spade_jax.policy.config import DecoderConfig

FIRST, SECOND = "_lora_a", "_lora_b"  # at the end of an adapter's names


def split_adapters(params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(adapters, all others) of a tree like that of the parameters, both nested dicts."""
    parts: tuple[dict, dict] = {}, {}
    for path, leaf in traverse_util.flatten_dict(params).items():
        parts[not path[-1].endswith((FIRST, SECOND))][path] = leaf
    return traverse_util.unflatten_dict(parts[0]), traverse_util.unflatten_dict(parts[1])


def join_params(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Inverse of `split_adapters`."""
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(one) | traverse_util.flatten_dict(other))


def merged_parameter(params: Mapping[str, Any], path: Sequence[str], config: DecoderConfig) -> Any:
    """One parameter with what its adapter adds, in float32; as it is where it has none."""
    *above, name = path
    siblings: Any = params
    for key in above:
        siblings = siblings[key]
    if name + FIRST not in siblings:
        return siblings[name]
    stacked = 2 if config.num_experts and "mlp" in path else 1  # layers, and experts
    return _merge(siblings[name], siblings[name + FIRST], siblings[name + SECOND], config.lora.scale, stacked)


def merge_adapters(params: Mapping[str, Any], config: DecoderConfig) -> dict[str, Any]:
    """The parameters of the network without adapters (`config.merged`) that computes the same.

    Args:
      params: of the scanned decoder; those that hold no adapters come back as they are.
      config: the network's shape, adapters included.
    """
    paths = traverse_util.flatten_dict(split_adapters(params)[1])
    return traverse_util.unflatten_dict({path: merged_parameter(params, path, config) for path in paths})


@functools.partial(jax.jit, static_argnums=(3, 4))
def _merge(weight: jax.Array, first: jax.Array, second: jax.Array, scale: float, stacked: int) -> jax.Array:
    lead = "xy"[:stacked]
    inputs, outputs = "ij"[: first.ndim - stacked - 1], "kl"[: second.ndim - stacked - 1]
    added = jnp.einsum(
        f"{lead}{inputs}r,{lead}r{outputs}->{lead}{inputs}{outputs}", first, second, precision=jax.lax.Precision.HIGHEST
    )
    return weight.astype(jnp.float32) + scale * added
