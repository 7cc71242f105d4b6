"""Log-probabilities of tokens without the B x T x V logits ever existing as a whole.

Axes: B rows, T tokens, C tokens of one chunk, D embedding, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from spade_jax.policy import experts
from spade_jax.policy.decoder import Decoder
from spade_jax.policy.placement import mesh_axes


def chunked_logprobs(
    head: Callable[[jax.Array], jax.Array],
    hidden_BxTxD: jax.Array,
    tokens_BxT: jax.Array,
    temperature_B: jax.Array | None = None,
    wanted_BxT: jax.Array | None = None,
    *,
    chunk: int = 64,
    with_entropy: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """log p(tokens[t] | tokens[:t]) with p = softmax(logits / temperature), and the entropy of that distribution.

    The vocabulary axis is visited at most `chunk` time steps at a time, and computed once more in the backward pass, so
    that the peak is a few times B * chunk * V floats (3 on a CPU, see the tests) whatever T is.

    Args:
      head: hidden [B, chunk, D] -> float32 logits [B, chunk, V]; it may close over what it has weights from.
      hidden_BxTxD: final hidden states; position t predicts token t + 1.
      temperature_B: float32[B], positive; None means 1.
      wanted_BxT: bool[B, T], the tokens whose log-probs are asked for; None means all. A chunk that predicts none of
        them is passed over, which saves the vocabulary axis where rows begin with long prompts; its results are 0.
      with_entropy: False skips the entropy, and returns zeros for it.

    Returns:
      float32[B, T] log-probs and float32[B, T] entropies in nats; index 0, which nothing predicts, is 0 in both.
      The entropy carries no gradient, nor does the temperature receive one.
    """
    B, T, _ = hidden_BxTxD.shape
    chunks = -(-T // chunk)
    chunk = -(-T // chunks)  # as even as they can be: filling costs as much as tokens
    # Position t is scored against token t + 1; the last one, and the filling of the last chunk, are cut off below.
    targets_BxT = jnp.pad(tokens_BxT[:, 1:], ((0, 0), (0, 1)))
    if wanted_BxT is None:
        wanted_BxT = jnp.ones((B, T), bool)
    wanted_BxT = jnp.pad(wanted_BxT[:, 1:], ((0, 0), (0, 1)))

    def split(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, ((0, 0), (0, chunks * chunk - T)) + ((0, 0),) * (x.ndim - 2))
        return jnp.moveaxis(x.reshape(B, chunks, chunk, *x.shape[2:]), 1, 0)

    with jax.named_scope("logprobs"):
        chunks_of = split(hidden_BxTxD), split(targets_BxT), split(wanted_BxT)
        head, weights = jax.closure_convert(head, chunks_of[0][0])
        logp, entropy = _scores(head, with_entropy, weights, temperature_B, *chunks_of)

    def join(x: jax.Array) -> jax.Array:
        x_BxT = jnp.moveaxis(x, 0, 1).reshape(B, chunks * chunk)[:, : T - 1]
        return jnp.pad(x_BxT, ((0, 0), (1, 0)))

    return join(logp), join(entropy)


# Axes of what follows: S chunks. The gradient is by hand: hidden states and log-sum-exps are kept, and a chunk's logits
# become their gradient. Autodiff holds more arrays of a chunk's size, a second one of the head's, and sums twice.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _scores(
    head: Callable[..., jax.Array],
    with_entropy: bool,
    weights: Sequence[jax.Array],
    temperature_B: jax.Array | None,
    hidden_SxBxCxD: jax.Array,
    targets_SxBxC: jax.Array,
    wanted_SxBxC: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """float32[S, B, C] log-probs and entropies of the targets; `head(hidden, *weights)` are the logits."""
    chunks = hidden_SxBxCxD, targets_SxBxC, wanted_SxBxC
    return _scores_forward(head, with_entropy, weights, temperature_B, *chunks)[0]


def _scaled(logits_BxCxV: jax.Array, temperature_B: jax.Array | None) -> jax.Array:
    logits_BxCxV = logits_BxCxV.astype(jnp.float32)
    return logits_BxCxV if temperature_B is None else logits_BxCxV / temperature_B[:, None, None]


def _hits(targets_BxC: jax.Array, logits_BxCxV: jax.Array) -> jax.Array:
    # A comparison rather than a gather: it fuses, and stays local when V is sharded.
    return lax.broadcasted_iota(jnp.int32, logits_BxCxV.shape, 2) == targets_BxC[..., None]


def _scores_forward(head, with_entropy, weights, temperature_B, hidden_SxBxCxD, targets_SxBxC, wanted_SxBxC):
    def score(h_BxCxD: jax.Array, y_BxC: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        logits_BxCxV = _scaled(head(h_BxCxD, *weights), temperature_B)
        lse_BxC = jax.nn.logsumexp(logits_BxCxV, axis=-1)
        logp_BxC = jnp.sum(jnp.where(_hits(y_BxC, logits_BxCxV), logits_BxCxV, 0.0), axis=-1) - lse_BxC
        if not with_entropy:
            return logp_BxC, jnp.zeros_like(logp_BxC), lse_BxC
        p_BxCxV = jnp.exp(logits_BxCxV - lse_BxC[..., None])
        # p = 0 times a logit of -inf (a masked piece) is 0 here, not NaN.
        mean_BxC = jnp.sum(jnp.where(p_BxCxV > 0, p_BxCxV * logits_BxCxV, 0.0), axis=-1)
        return logp_BxC, lse_BxC - mean_BxC, lse_BxC

    def visit(_: None, chunk: tuple[jax.Array, ...]) -> tuple[None, tuple[jax.Array, ...]]:
        h_BxCxD, y_BxC, wanted_BxC = chunk
        nothing = jnp.zeros(y_BxC.shape, jnp.float32)
        return None, lax.cond(wanted_BxC.any(), score, lambda h, y: (nothing,) * 3, h_BxCxD, y_BxC)

    _, (logp, entropy, lse) = lax.scan(visit, None, (hidden_SxBxCxD, targets_SxBxC, wanted_SxBxC))
    return (logp, entropy), (weights, temperature_B, hidden_SxBxCxD, targets_SxBxC, wanted_SxBxC, lse)


def _scores_backward(head, with_entropy, kept, cotangents):
    weights, temperature_B, *chunks, lse_SxBxC = kept
    g_SxBxC, _ = cotangents

    def descend(h_BxCxD: jax.Array, y_BxC: jax.Array, lse_BxC: jax.Array, g_BxC: jax.Array) -> tuple[jax.Array, ...]:
        """Gradients of sum(g * logp): of the hidden states, and of the weights."""
        logits_BxCxV, pull = jax.vjp(head, h_BxCxD, *weights)
        scaled_BxCxV = _scaled(logits_BxCxV, temperature_B)
        slope_BxCxV = _hits(y_BxC, scaled_BxCxV) - jnp.exp(scaled_BxCxV - lse_BxC[..., None])
        gradient_BxCxV = _scaled(g_BxC[..., None] * slope_BxCxV, temperature_B)
        return pull(gradient_BxCxV.astype(logits_BxCxV.dtype))

    def visit(sums: list[jax.Array], chunk: tuple[jax.Array, ...]) -> tuple[list[jax.Array], jax.Array]:
        h_BxCxD, y_BxC, wanted_BxC, lse_BxC, g_BxC = chunk

        def nothing(*_: jax.Array) -> tuple[jax.Array, ...]:
            return jnp.zeros_like(h_BxCxD), *map(jnp.zeros_like, weights)

        dh_BxCxD, *parts = lax.cond(wanted_BxC.any(), descend, nothing, h_BxCxD, y_BxC, lse_BxC, g_BxC)
        return jax.tree.map(jnp.add, sums, parts), dh_BxCxD

    sums, dh_SxBxCxD = lax.scan(visit, [jnp.zeros_like(w) for w in weights], (*chunks, lse_SxBxC, g_SxBxC))
    return sums, None, dh_SxBxCxD, None, None


_scores.defvjp(_scores_forward, _scores_backward)


def model_logprobs(
    model: Decoder,
    params: Any,
    tokens_BxT: jax.Array,
    positions_BxT: jax.Array,
    temperature_B: jax.Array | None = None,
    wanted_BxT: jax.Array | None = None,
    *,
    chunk: int = 64,
    with_entropy: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """`chunked_logprobs` of a decoder's own forward pass: the one scorer of training and of pi_old.

    Args:
      tokens_BxT, positions_BxT: int32[B, T], left-aligned rows.
    """
    hidden_BxTxD, _ = model.apply({"params": params}, tokens_BxT, positions_BxT)
    rows = hidden_BxTxD, tokens_BxT, temperature_B, wanted_BxT
    return _score(model, params, *rows, chunk=chunk, with_entropy=with_entropy)


def routed_logprobs(
    model: Decoder,
    params: Any,
    tokens_BxT: jax.Array,
    positions_BxT: jax.Array,
    temperature_B: jax.Array | None,
    counted_BxT: jax.Array,
    *,
    chunk: int = 64,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`model_logprobs` of the counted tokens of a decoder with experts, and float32[L, 2, E], their `experts.load`."""
    (hidden_BxTxD, _), left = model.apply(
        {"params": params}, tokens_BxT, positions_BxT, None, counted_BxT, mutable=[experts.ROUTER]
    )
    (load_Lx2xE,) = left[experts.ROUTER]["layers"]["mlp"]["load"]
    rows = hidden_BxTxD, tokens_BxT, temperature_B, counted_BxT
    scores = _score(model, params, *rows, chunk=chunk, with_entropy=True)
    return *scores, load_Lx2xE


def _score(
    model: Decoder,
    params: Any,
    hidden_BxTxD: jax.Array,
    tokens_BxT: jax.Array,
    temperature_B: jax.Array | None,
    wanted_BxT: jax.Array | None,
    *,
    chunk: int,
    with_entropy: bool,
) -> tuple[jax.Array, jax.Array]:
    return chunked_logprobs(
        _head(model, params, hidden_BxTxD.shape[0]),
        hidden_BxTxD,
        tokens_BxT,
        temperature_B,
        wanted_BxT,
        chunk=chunk,
        with_entropy=with_entropy,
    )


def _head(model: Decoder, params: Any, rows: int) -> Callable[[jax.Array], jax.Array]:
    """Hidden states [B, C, D] of `rows` rows to logits, each group of devices that hold the same rows with a copy.

    Every chunk uses the matrix. Were it one array, it would be fetched, and its gradient added up over the devices, as
    often as there are chunks; that of a copy stays where it is, and is added up in the end.
    """
    batch, vocab = mesh_axes("batch"), mesh_axes("vocab")
    copies = math.prod(jax.sharding.get_abstract_mesh().shape[axis] for axis in batch)
    if copies == 1 or rows % copies:
        return lambda h_BxCxD: model.apply({"params": params}, h_BxCxD, method="head")
    name = "embedding" if model.config.tied_head else "head_kernel"
    matrix_NxVxD = lax.with_sharding_constraint(
        jnp.broadcast_to(params[name], (copies, *params[name].shape)), PartitionSpec(batch, vocab or None)
    )

    def head(h_BxCxD: jax.Array) -> jax.Array:
        B, C, D = h_BxCxD.shape
        one = lambda matrix, h: model.apply({"params": {**params, name: matrix}}, h, method="head")  # noqa: E731
        return jax.vmap(one)(matrix_NxVxD, h_BxCxD.reshape(copies, B // copies, C, D)).reshape(B, C, -1)

    return head
