"""Log-probs of given continuations: what a policy would say, without drawing.

Axis legend: B rows, T tokens, C tokens of a continuation, D embedding, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import Decoder


@functools.partial(jax.jit, static_argnums=0)
def _score(
    model: Decoder,
    params: Any,
    tokens_BxT: jax.Array,
    first_B: jax.Array,
    length_B: jax.Array,
    offsets_C: jax.Array,
    temperature: jax.Array,
) -> jax.Array:
    """float32[B] log-prob of the tokens [first, first + length) of each row given those before them."""
    B, T = tokens_BxT.shape
    positions_BxT = jnp.broadcast_to(jnp.arange(T, dtype=jnp.int32), (B, T))
    hidden_BxTxD, _ = model.apply({"params": params}, tokens_BxT, positions_BxT)
    target_BxC = jnp.minimum(first_B[:, None] + offsets_C, T - 1)
    hidden_BxCxD = jnp.take_along_axis(hidden_BxTxD, target_BxC[..., None] - 1, axis=1)
    logits_BxCxV = model.apply({"params": params}, hidden_BxCxD, method="head").astype(jnp.float32) / temperature
    tokens_BxC = jnp.take_along_axis(tokens_BxT, target_BxC, axis=1)
    logp_BxC = jnp.take_along_axis(jax.nn.log_softmax(logits_BxCxV), tokens_BxC[..., None], axis=-1)[..., 0]
    return jnp.sum(jnp.where(offsets_C < length_B[:, None], logp_BxC, 0.0), axis=1)


def score(
    model: Decoder,
    params: Any,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    temperature: float,
    *,
    rows: int = 64,
) -> np.ndarray:
    """float64[N]: log p(continuation | prefix) of N pairs of token arrays, at a temperature.

    Args:
      pairs: (prefix, continuation), at least one token each.
      rows: of one call; shapes are padded to powers of two, so that few are compiled.
    """
    out = np.zeros(len(pairs))
    if not pairs:
        return out
    T = 1 << (max(len(prefix) + len(rest) for prefix, rest in pairs) - 1).bit_length()
    C = 1 << (max(len(rest) for _, rest in pairs) - 1).bit_length()
    for start in range(0, len(pairs), rows):
        chunk = pairs[start : start + rows]
        tokens, first, length = np.zeros((rows, T), np.int32), np.ones(rows, np.int32), np.zeros(rows, np.int32)
        for i, (prefix, rest) in enumerate(chunk):
            tokens[i, : len(prefix) + len(rest)] = np.concatenate([prefix, rest])
            first[i], length[i] = len(prefix), len(rest)
        offsets = np.arange(C, dtype=np.int32)
        logp = _score(model, params, tokens, first, length, offsets, np.float32(temperature))
        out[start : start + len(chunk)] = np.asarray(logp)[: len(chunk)]
    return out
