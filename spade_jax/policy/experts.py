"""Mixture of experts: every token goes through its k most probable experts, none is dropped.

Tokens are sorted by expert and visited in blocks that one expert multiplies, so that an expert computes its own tokens
only and no more than a block of hidden units exists at once. (`jax.lax.ragged_dot` would be shorter, but on GPUs and
CPUs XLA expands it to a product of every expert with every token.) On a mesh the experts are spread over an axis of
their own: a device gathers the tokens of the devices it shares a replica with, computes what its experts add to them,
and the sums are scattered back. Few tokens go through every expert, most of them with weight 0: then reading the
weights is what takes the time.

Axis legend: B rows, T tokens, N = B T, K experts per token, M = N K, E experts (of one device, inside the mapped
function), D residual width, F width of an expert, S tokens of a block.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from spade_jax.policy.placement import mesh_axes
from spade_jax.policy.products import Weight, project

ROUTER = "router"  # the collection in which a layer leaves its load
_MOST, _LEAST = 512, 4  # tokens of a block; fewer of an expert, on average, are not worth one

# Gate, up and down of all experts.
Weights = tuple[Weight, Weight, Weight]

_ACTIVATIONS = {"silu": jax.nn.silu, "gelu_tanh": functools.partial(jax.nn.gelu, approximate=True)}


def route(logits_BxTxE: jax.Array, k: int, normalised: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Softmax over all experts, then the k most probable (Qwen3-MoE; Mixtral where normalised).

    Returns:
      (float32[B, T, E] probabilities, float32[B, T, K] weights, int32[B, T, K] experts).
    """
    probability_BxTxE = jax.nn.softmax(logits_BxTxE, axis=-1)
    weight_BxTxK, expert_BxTxK = _top_k(probability_BxTxE, k)
    if normalised:
        weight_BxTxK = weight_BxTxK / jnp.sum(weight_BxTxK, axis=-1, keepdims=True)
    return probability_BxTxE, weight_BxTxK, expert_BxTxK


def _top_k(x_BxTxE: jax.Array, k: int) -> tuple[jax.Array, jax.Array]:
    """`lax.top_k`, row by row where the rows are: XLA by itself would first gather those of the whole batch."""

    def choose(x_BxTxE: jax.Array) -> tuple[jax.Array, jax.Array]:
        return tuple(lax.top_k(x_BxTxE, k))

    batch = _batch_axes(x_BxTxE.shape[0])
    if not batch:
        return choose(x_BxTxE)
    rows = jax.sharding.PartitionSpec(batch)
    return jax.shard_map(choose, in_specs=rows, out_specs=(rows, rows), check_vma=False)(x_BxTxE)


def _batch_axes(rows: int) -> tuple[str, ...]:
    """The batch's mesh axes; () where the rows do not divide over them."""
    batch, mesh = mesh_axes("batch"), jax.sharding.get_abstract_mesh()
    return () if rows % math.prod(mesh.shape[axis] for axis in batch) else batch


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


def _mlp(activation: str, weights: Weights, x_SxD: jax.Array, weight_S: jax.Array) -> jax.Array:
    """float32[S, D]: what one expert adds to tokens that give it these weights."""
    gate, up, down = weights
    hidden_SxF = _ACTIVATIONS[activation](project("sd,df->sf", x_SxD, gate)) * project("sd,df->sf", x_SxD, up)
    return project("sf,fd->sd", hidden_SxF.astype(x_SxD.dtype), down) * weight_S[:, None]


def _every(activation: str, weights: Weights, x_NxD, weight_NxK, expert_NxK, first_expert) -> jax.Array:
    """As `_in_blocks`, for few tokens: every expert computes all of them."""
    gate, up, down = weights
    E = gate[0].shape[0]
    share_NxE = jnp.einsum("nke,nk->ne", jax.nn.one_hot(expert_NxK - first_expert, E), weight_NxK)
    hidden = _ACTIVATIONS[activation](project("nd,edf->enf", x_NxD, gate)) * project("nd,edf->enf", x_NxD, up)
    return jnp.einsum("end,ne->nd", project("enf,efd->end", hidden.astype(x_NxD.dtype), down), share_NxE)


def _schedule(
    expert_NxK: jax.Array, first_expert: jax.Array | int, E: int, S: int
) -> tuple[jax.Array, Callable[[jax.Array], tuple[jax.Array, jax.Array]]]:
    """(number of blocks, function from a block to its expert and its int32[S] places among the M, M for filling)."""
    local_M = expert_NxK.reshape(-1) - first_expert
    local_M = jnp.where((local_M >= 0) & (local_M < E), local_M, E)  # of other devices: behind all groups
    order_M = jnp.argsort(local_M, stable=True).astype(jnp.int32)
    size_E = jnp.bincount(local_M, length=E).astype(jnp.int32)
    start_E, blocks_E = jnp.cumsum(size_E) - size_E, -(-size_E // S)
    end_E = jnp.cumsum(blocks_E)

    def block(i: jax.Array) -> tuple[jax.Array, jax.Array]:
        e = jnp.searchsorted(end_E, i, side="right")
        within_S = (i - end_E[e] + blocks_E[e]) * S + jnp.arange(S, dtype=jnp.int32)
        place_S = order_M.at[start_E[e] + within_S].get(mode="clip")
        return e, jnp.where(within_S < size_E[e], place_S, len(order_M))

    return end_E[-1], block


def _taken(weights: Weights, e: jax.Array, x_NxD: jax.Array, weight_NxK: jax.Array, place_S: jax.Array):
    """A block's weights, tokens and their weights; filling is 0."""
    of_expert = jax.tree.map(lambda w: lax.dynamic_index_in_dim(w, e, keepdims=False), weights)
    x_SxD = x_NxD.at[place_S // weight_NxK.shape[1]].get(mode="fill", fill_value=0)
    return of_expert, x_SxD, weight_NxK.reshape(-1).at[place_S].get(mode="fill", fill_value=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1, 2))
def _in_blocks(
    activation: str, S: int, frozen: bool, weights: Weights, x_NxD, weight_NxK, expert_NxK, first_expert
) -> jax.Array:
    """float32[N, D]: what the experts first_expert .. first_expert + E - 1 add to each token.

    The number of blocks is known when the tokens are, so the loop has no gradient of its own: backwards each block is
    computed anew.
    """
    K = expert_NxK.shape[1]
    count, block = _schedule(expert_NxK, first_expert, weights[0][0].shape[0], S)

    def add(i, out_NxD):
        e, place_S = block(i)
        out_SxD = _mlp(activation, *_taken(weights, e, x_NxD, weight_NxK, place_S))
        return out_NxD.at[place_S // K].add(out_SxD, mode="drop")

    return lax.fori_loop(0, count, add, jnp.zeros(x_NxD.shape, jnp.float32))


def _in_blocks_forward(activation, S, frozen, *arguments):
    return _in_blocks(activation, S, frozen, *arguments), arguments


def _in_blocks_backward(activation, S, frozen, arguments, g_NxD):
    weights, x_NxD, weight_NxK, expert_NxK, first_expert = arguments
    K, kept = expert_NxK.shape[1], 1 if frozen else 0  # matrices come first
    count, block = _schedule(expert_NxK, first_expert, weights[0][0].shape[0], S)

    def add(i, sums):
        e, place_S = block(i)
        of_expert, *rest = _taken(weights, e, x_NxD, weight_NxK, place_S)

        def forward(trained, x_SxD, weight_S):
            whole = tuple((*w[:kept], *t) for w, t in zip(of_expert, trained, strict=True))
            return _mlp(activation, whole, x_SxD, weight_S)

        _, transpose = jax.vjp(forward, tuple(w[kept:] for w in of_expert), *rest)
        d_trained, dx_SxD, d_weight_S = transpose(g_NxD.at[place_S // K].get(mode="fill", fill_value=0))
        sum_trained, sum_x_NxD, sum_weight_M = sums
        return (
            jax.tree.map(lambda total, d: total.at[e].add(d), sum_trained, d_trained),
            sum_x_NxD.at[place_S // K].add(dx_SxD, mode="drop"),
            sum_weight_M.at[place_S].add(d_weight_S, mode="drop"),
        )

    zeros = (tuple(w[kept:] for w in weights), x_NxD, weight_NxK.reshape(-1))
    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), zeros)
    trained, dx_NxD, d_weight_M = lax.fori_loop(0, count, add, zeros)
    trained = jax.tree.map(lambda d, w: d.astype(w.dtype), trained, tuple(w[kept:] for w in weights))
    d_weights = tuple(((None,) * kept + d) for d in trained)
    return d_weights, dx_NxD.astype(x_NxD.dtype), d_weight_M.reshape(weight_NxK.shape), None, None


_in_blocks.defvjp(_in_blocks_forward, _in_blocks_backward)


def mix(
    activation: str,
    weights: Weights,
    x_BxTxD: jax.Array,
    weight_BxTxK: jax.Array,
    expert_BxTxK: jax.Array,
    *,
    frozen: bool = False,
) -> jax.Array:
    """float32[B, T, D]: the weighted sum of each token's experts.

    Rows that do not divide over the batch's mesh axes are computed by every device.

    Args:
      activation: of the gate.
      weights: gate and up [E, D, F], down [E, F, D], each with its adapter if it has one.
      frozen: the matrices have no gradient; their adapters do.
    """
    batch, experts, width = map(mesh_axes, ("batch", "experts", "mlp"))
    mesh = jax.sharding.get_abstract_mesh()
    E, mapped, alone = weights[0][0].shape[0], bool(batch or experts or width), mesh.empty or mesh.size == 1

    def run(weights, x, weight, expert, first):
        x_NxD, weight_NxK, expert_NxK = (a.reshape(-1, a.shape[-1]) for a in (x, weight, expert))
        size = min(_MOST, expert_NxK.size // E)
        # On a mesh but not mapped, as when sampling, XLA splits the experts, which it cannot do to a loop over blocks.
        if size < _LEAST or not (mapped or alone):
            return _every(activation, weights, x_NxD, weight_NxK, expert_NxK, first).reshape(x.shape)
        size = 1 << (size.bit_length() - 1)
        return _in_blocks(activation, size, frozen, weights, x_NxD, weight_NxK, expert_NxK, first).reshape(x.shape)

    if not mapped:
        return run(weights, x_BxTxD, weight_BxTxK, expert_BxTxK, 0)

    batch = _batch_axes(x_BxTxD.shape[0])
    shared = tuple(axis for axis in experts if axis in batch)  # devices that hold other rows and other experts

    def on_device(weights, *rows):
        if shared:
            rows = tuple(lax.all_gather(r, shared, axis=0, tiled=True) for r in rows)
        first = lax.axis_index(experts) * weights[0][0].shape[0] if experts else 0
        out = run(weights, *rows, first)
        summed = tuple(axis for axis in (*experts, *width) if axis not in shared)
        if summed:
            out = lax.psum(out, summed)
        return lax.psum_scatter(out, shared, scatter_dimension=0, tiled=True) if shared else out

    P = jax.sharding.PartitionSpec
    e, f, b = (axes or None for axes in (experts, width, batch))
    # Of a matrix, and of its adapter's two factors; those of `down` add up over the width as it does.
    wide = P(e, None, f), P(e, None, None), P(e, None, f)
    narrow = P(e, f, None), P(e, f, None), P(e, None, None)
    gate, up, down = weights
    specs = wide[: len(gate)], wide[: len(up)], narrow[: len(down)]
    # The gradient rule of the blocks knows nothing of which devices hold copies.
    spread = jax.shard_map(on_device, in_specs=(specs, P(b), P(b), P(b)), out_specs=P(b), check_vma=False)
    return spread(weights, x_BxTxD, weight_BxTxK, expert_BxTxK)


def activation(name: str):
    """The gate's nonlinearity."""
    return _ACTIVATIONS[name]
