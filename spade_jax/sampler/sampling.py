"""The distribution a token is drawn from, and the draw.

For logits z and a request's settings the distribution is, in this order:
  1. temperature: softmax(z / temperature);
  2. top-k: keep the k most probable tokens;
  3. top-p: of these, renormalised, keep the most probable until their mass reaches p;
  4. min-p: keep tokens at least min_p times as probable as the most probable one;
  5. renormalise. Tokens tied with the last one kept are kept too.
Temperature 0 is greedy: all probability on the first most probable token.

The recorded log-prob is that of this final distribution, because that is what an
importance ratio has to be taken against.

Axis legend: S slots, V vocabulary, N groups of tokens, M tokens per group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_GROUP = 64  # tokens per group of the two-level draw: sqrt(V) within a factor of two or three
_TEMPERATURE_FLOOR = 1e-6


@dataclasses.dataclass(frozen=True)
class SamplingConfig:
    """How one conversation's tokens are drawn.

    Attributes:
      temperature: divides the logits; 0 is greedy.
      top_k: number of most probable tokens kept; 0 keeps all.
      top_p: probability mass kept, in (0, 1]; 1 keeps all.
      min_p: least probability kept, relative to the most probable token, in [0, 1).
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0

    def __post_init__(self):
        if self.temperature != 0 and not _TEMPERATURE_FLOOR <= self.temperature < float("inf"):
            raise ValueError(f"temperature={self.temperature} is not 0 or a positive number; use 0 for greedy.")
        if self.top_k < 0:
            raise ValueError(f"top_k={self.top_k} is negative; use 0 to keep all tokens.")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p} is outside (0, 1]; use 1 to keep all tokens.")
        if not 0 <= self.min_p < 1:
            raise ValueError(f"min_p={self.min_p} is outside [0, 1); use 0 to keep all tokens.")


class SamplingArrays(NamedTuple):
    """`SamplingConfig` of every slot: float32[S] temperature, int32[S] top_k, float32[S] top_p, float32[S] min_p."""

    temperature: np.ndarray | jax.Array
    top_k: np.ndarray | jax.Array
    top_p: np.ndarray | jax.Array
    min_p: np.ndarray | jax.Array


def pack(configs: Sequence[SamplingConfig]) -> SamplingArrays:
    """Stacks the settings of S slots."""
    return SamplingArrays(
        temperature=np.array([c.temperature for c in configs], np.float32),
        top_k=np.array([c.top_k for c in configs], np.int32),
        top_p=np.array([c.top_p for c in configs], np.float32),
        min_p=np.array([c.min_p for c in configs], np.float32),
    )


def _threshold(weight_SxV: jax.Array, measure, target_S: jax.Array) -> jax.Array:
    """The largest t, per row, at which the tokens of weight >= t measure at least `target`; float32[S].

    Bisection over the bit patterns of floats in [0, 1], whose order as integers is
    their order as numbers: 30 reductions give what a sort would, exactly, and take
    a tenth of its time on a CPU.
    """
    low = jnp.zeros_like(target_S, jnp.int32)  # always satisfies the target: t = 0 keeps everything
    high = jnp.full_like(low, np.float32(1).view(np.int32) + 1)  # never does: no weight exceeds 1

    def halve(_, bounds):
        low, high = bounds
        middle = (low + high) // 2
        t = jax.lax.bitcast_convert_type(middle, jnp.float32)
        enough = measure(weight_SxV >= t[:, None]) >= target_S
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    low, _ = jax.lax.fori_loop(0, 30, halve, (low, high))
    return jax.lax.bitcast_convert_type(low, jnp.float32)


def truncated_weights(logits_SxV: jax.Array, settings: SamplingArrays) -> tuple[jax.Array, jax.Array]:
    """Unnormalised probabilities of steps 1 to 4 (0 for a token not kept) and the tempered logits; both [S, V].

    The largest weight of a row is 1. A truncation that no slot asks for is skipped at run time.
    """
    temperature = jnp.where(settings.temperature > 0, settings.temperature, 1.0)
    z = logits_SxV.astype(jnp.float32) / temperature[:, None]
    z = z - jnp.max(z, axis=-1, keepdims=True)
    weight = jnp.exp(z)
    vocab = weight.shape[-1]

    def top_k(weight):
        k = jnp.where(settings.top_k > 0, jnp.minimum(settings.top_k, vocab), vocab)
        t = _threshold(weight, lambda kept: jnp.sum(kept, axis=-1), k)
        return jnp.where(weight >= t[:, None], weight, 0.0)

    def top_p(weight):
        target = settings.top_p * jnp.sum(weight, axis=-1)
        t = _threshold(weight, lambda kept: jnp.sum(jnp.where(kept, weight, 0.0), axis=-1), target)
        return jnp.where((weight >= t[:, None]) | (settings.top_p >= 1)[:, None], weight, 0.0)

    weight = jax.lax.cond(jnp.any(settings.top_k > 0), top_k, lambda w: w, weight)
    weight = jax.lax.cond(jnp.any(settings.top_p < 1), top_p, lambda w: w, weight)
    return jnp.where(weight >= settings.min_p[:, None], weight, 0.0), z


def _first_above(weight_SxN: jax.Array, target_S: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(index of the first entry at which the running sum exceeds the target, running sum before it).

    Never an entry of weight 0, whatever the rounding of the sums: where no sum
    exceeds the target it is the last entry of positive weight.
    """
    running = jnp.cumsum(weight_SxN, axis=-1)
    count = weight_SxN.shape[-1]
    index = jnp.sum(running <= target_S[:, None], axis=-1)
    last = jnp.max(jnp.where(weight_SxN > 0, jnp.arange(count), 0), axis=-1)
    index = jnp.minimum(index, last)
    before = jnp.where(index > 0, jnp.take_along_axis(running, jnp.maximum(index - 1, 0)[:, None], -1)[:, 0], 0.0)
    return index, before


def draw(logits_SxV: jax.Array, settings: SamplingArrays, uniform_S: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Draws one token per slot by inverting the cumulative distribution at a uniform number.

    In two levels: first a group of tokens by the groups' masses, then a token of
    that group; a running sum over the whole vocabulary costs far more.

    Args:
      logits_SxV: float32[S, V].
      settings: per-slot settings.
      uniform_S: float32[S] in [0, 1).

    Returns:
      (int32[S] tokens, float32[S] log-probs under the distribution drawn from; 0 where greedy).
    """
    slots, vocab = logits_SxV.shape
    weight, z = truncated_weights(logits_SxV, settings)
    weight_SxNxM = jnp.pad(weight, ((0, 0), (0, -vocab % _GROUP))).reshape(slots, -1, _GROUP)
    mass_SxN = jnp.sum(weight_SxNxM, axis=-1)
    total = jnp.sum(mass_SxN, axis=-1)
    target = uniform_S * total
    group, before = _first_above(mass_SxN, target)
    chosen_SxM = jnp.take_along_axis(weight_SxNxM, group[:, None, None], axis=1)[:, 0]
    offset, _ = _first_above(chosen_SxM, target - before)
    token = group * _GROUP + offset
    logp = jnp.take_along_axis(z, token[:, None], axis=-1)[:, 0] - jnp.log(total)

    greedy = settings.temperature <= 0
    # The first index of the maximum; argmax is many times slower on a CPU.
    best = jnp.min(jnp.where(z >= 0, jnp.arange(vocab), vocab - 1), axis=-1)
    return jnp.where(greedy, best, token).astype(jnp.int32), jnp.where(greedy, 0.0, logp)
