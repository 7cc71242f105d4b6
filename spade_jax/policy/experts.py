"""Mixture of experts: every token goes through its k most probable experts, none is dropped.

Tokens are sorted by expert, so that each expert multiplies one contiguous group of rows (`jax.lax.ragged_dot`). On a
mesh the experts are spread over an axis of their own: a device gathers the tokens of the devices it shares a replica
with, computes what its experts add to them, and the sums are scattered back.

Axis legend: B rows, T tokens, N = B T, K experts per token, E experts (of one device, inside the mapped function),
D residual width, F width of an expert.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

ROUTER = "router"  # the collection in which a layer leaves its load

# Mesh axes that hold rows, experts and expert width; each () off a mesh.
Placement = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]


def route(logits_BxTxE: jax.Array, k: int, normalised: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Softmax over all experts, then the k most probable (Qwen3-MoE; Mixtral where normalised).

    Returns:
      (float32[B, T, E] probabilities, float32[B, T, K] weights, int32[B, T, K] experts).
    """
    probability_BxTxE = jax.nn.softmax(logits_BxTxE, axis=-1)
    weight_BxTxK, expert_BxTxK = lax.top_k(probability_BxTxE, k)
    if normalised:
        weight_BxTxK = weight_BxTxK / jnp.sum(weight_BxTxK, axis=-1, keepdims=True)
    return probability_BxTxE, weight_BxTxK, expert_BxTxK


def load(probability_BxTxE: jax.Array, expert_BxTxK: jax.Array, counted_BxT: jax.Array | None) -> jax.Array:
    """float32[2, E], summed over counted tokens: share of the token's K places an expert got, and its probability."""
    E, K = probability_BxTxE.shape[-1], expert_BxTxK.shape[-1]
    share_BxTxE = jnp.sum(jax.nn.one_hot(expert_BxTxK, E), axis=-2) / K
    both = jnp.stack([lax.stop_gradient(share_BxTxE), probability_BxTxE])
    if counted_BxT is not None:
        both = both * counted_BxT[..., None]
    return jnp.sum(both, axis=(1, 2))


def balance_loss(load_Lx2xE: jax.Array) -> jax.Array:
    """E * sum_e share_e * probability_e, averaged over layers: 1 where the load is even (arXiv:2101.03961, eq. 4)."""
    tokens = jnp.sum(load_Lx2xE[0, 0])  # a token's shares add up to 1
    mean_Lx2xE = load_Lx2xE / jnp.maximum(tokens, 1.0)
    return jnp.mean(jnp.sum(mean_Lx2xE[:, 0] * mean_Lx2xE[:, 1], axis=-1)) * load_Lx2xE.shape[-1]


def placement() -> Placement:
    """Where the axis rules in force put rows, experts and expert width on the mesh in force."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not nn.get_logical_axis_rules():
        return (), (), ()

    def axes(name: str) -> tuple[str, ...]:
        (found,) = nn.logical_to_mesh_axes((name,))
        names = (found,) if isinstance(found, str) else tuple(found or ())
        return tuple(axis for axis in names if mesh.shape.get(axis, 1) > 1)

    return axes("batch"), axes("experts"), axes("mlp")


@jax.custom_vjp
def grouped_product(x_NxD: jax.Array, w_ExDxF: jax.Array, sizes_E: jax.Array) -> jax.Array:
    """float32[N, F]: row n times the matrix of its group; the first sizes[0] rows are group 0, and so on.

    The backward products have the operands' precision; see `decoder.product`.
    """
    return lax.ragged_dot(x_NxD, w_ExDxF, sizes_E, preferred_element_type=jnp.float32)


def _grouped_forward(x, w, sizes):
    return grouped_product(x, w, sizes), (x, w, sizes)


def _grouped_backward(operands, g):
    x, w, sizes = operands
    _, transpose = jax.vjp(lambda x, w: lax.ragged_dot(x, w, sizes), x, w)
    return *transpose(g.astype(x.dtype)), None


grouped_product.defvjp(_grouped_forward, _grouped_backward)


def _mix(activation, gate, up, down, x_NxD, weight_NxK, expert_NxK, first_expert):
    """What the experts first_expert .. first_expert + E - 1 add to each token; float32[N, D]."""
    E, (N, K) = gate.shape[0], expert_NxK.shape
    local_M = expert_NxK.reshape(-1) - first_expert
    local_M = jnp.where((local_M >= 0) & (local_M < E), local_M, E)  # of other devices: behind all groups
    order_M = jnp.argsort(local_M, stable=True)
    sizes_E = jnp.bincount(local_M, length=E).astype(jnp.int32)
    rows_MxD = x_NxD[order_M // K]
    hidden = activation(grouped_product(rows_MxD, gate, sizes_E)) * grouped_product(rows_MxD, up, sizes_E)
    out_MxD = grouped_product(hidden.astype(x_NxD.dtype), down, sizes_E)
    # What stands behind all groups is not defined on every backend.
    own_M = jnp.arange(N * K) < jnp.sum(sizes_E)
    out_MxD = jnp.where(own_M[:, None], out_MxD, 0.0)
    back_M = jnp.argsort(order_M)
    return jnp.einsum("nkd,nk->nd", out_MxD[back_M].reshape(N, K, -1), weight_NxK)


def mix(
    activation,
    gate_ExDxF: jax.Array,
    up_ExDxF: jax.Array,
    down_ExFxD: jax.Array,
    x_BxTxD: jax.Array,
    weight_BxTxK: jax.Array,
    expert_BxTxK: jax.Array,
) -> jax.Array:
    """float32[B, T, D]: the weighted sum of each token's experts.

    Rows that do not divide over the batch's mesh axes are computed by every device.
    """
    batch, experts, width = placement()
    shape = jax.sharding.get_abstract_mesh().shape

    def flat(x):
        return x.reshape(-1, x.shape[-1])

    if not (batch or experts or width):
        arguments = flat(x_BxTxD), flat(weight_BxTxK), flat(expert_BxTxK)
        return _mix(activation, gate_ExDxF, up_ExDxF, down_ExFxD, *arguments, 0).reshape(x_BxTxD.shape)

    parts = 1
    for axis in batch:
        parts *= shape[axis]
    if x_BxTxD.shape[0] % parts:
        batch = ()
    shared = tuple(axis for axis in experts if axis in batch)  # devices that hold other rows and other experts

    def on_device(gate, up, down, x, weight, expert):
        rows = x, weight, expert
        if shared:
            rows = tuple(lax.all_gather(r, shared, axis=0, tiled=True) for r in rows)
        first = lax.axis_index(experts) * gate.shape[0] if experts else 0
        out = _mix(activation, gate, up, down, *map(flat, rows), first).reshape(rows[0].shape)
        summed = tuple(axis for axis in (*experts, *width) if axis not in shared)
        if summed:
            out = lax.psum(out, summed)
        return lax.psum_scatter(out, shared, scatter_dimension=0, tiled=True) if shared else out

    P = jax.sharding.PartitionSpec
    e, f, b = (axes or None for axes in (experts, width, batch))
    mapped = jax.shard_map(
        on_device,
        in_specs=(P(e, None, f), P(e, None, f), P(e, f, None), P(b), P(b), P(b)),
        out_specs=P(b),
        # The gradient rule of `grouped_product` knows nothing of which devices hold copies.
        check_vma=False,
    )
    return mapped(gate_ExDxF, up_ExDxF, down_ExFxD, x_BxTxD, weight_BxTxK, expert_BxTxK)


def activation(name: str):
    """The gate's nonlinearity."""
    return jax.nn.silu if name == "silu" else functools.partial(jax.nn.gelu, approximate=True)
