"""Rotary positions and the ways to stretch them to longer contexts.

Axis legend: B rows, T tokens, N heads, D head width.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy.config import DecoderConfig, RopeScaling

Table = tuple[jax.Array, jax.Array]


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[np.ndarray, float]:
    """Radians per position, float32[D/2], and what the cosines and sines are multiplied by."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    plain = theta**-exponents
    if scaling is None:
        return plain.astype(np.float32), 1.0
    divided = plain / scaling.factor
    if scaling.kind == "linear":
        return divided.astype(np.float32), 1.0
    context = scaling.original_context
    if scaling.kind == "llama3":
        turns = plain * context / (2 * math.pi)
        low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
        kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return (kept * plain + (1 - kept) * divided).astype(np.float32), 1.0

    def dimension(turns: float) -> float:
        """The (fractional) dimension that turns so many times within the context."""
        return head_dim * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    last += 0.001 if first == last else 0
    kept = 1 - np.clip((np.arange(head_dim // 2) - first) / (last - first), 0.0, 1.0)
    magnitude = scaling.attention_factor or 0.1 * math.log(scaling.factor) + 1.0
    return (kept * plain + (1 - kept) * divided).astype(np.float32), magnitude


def rope_table(positions_BxT: jax.Array, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> Table:
    """Cosines and sines, float32[B, T, D/2], of rotary embeddings (Su et al. 2021, arXiv:2104.09864)."""
    if scaling is None:
        per_position, magnitude = theta ** (-jnp.arange(0, head_dim, 2, dtype=jnp.float32) / head_dim), 1.0
    else:
        per_position, magnitude = frequencies(head_dim, theta, scaling)
    angles = positions_BxT[..., None].astype(jnp.float32) * per_position
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return (cos, sin) if magnitude == 1.0 else (cos * magnitude, sin * magnitude)


def rope_tables(config: DecoderConfig, positions_BxT: jax.Array) -> tuple[Table, Table | None]:
    """The table of global layers, and that of local layers where it is another one."""
    table = rope_table(positions_BxT, config.head_dim, config.rope_theta, config.rope_scaling)
    if not config.local_rope_theta:
        return table, None
    return table, rope_table(positions_BxT, config.head_dim, config.local_rope_theta)


def pick_table(tables: tuple[Table, Table | None], local: bool | jax.Array) -> Table:
    """The table of one layer."""
    everywhere, near = tables
    if near is None or local is False:
        return everywhere
    if local is True:
        return near
    return tuple(jnp.where(local, a, b) for a, b in zip(near, everywhere, strict=True))


def apply_rope(x_BxTxNxD: jax.Array, table: Table) -> jax.Array:
    """Rotates dimension i together with i + D/2 (half rotation, as in Llama and Qwen)."""
    cos, sin = (t[:, :, None, :] for t in table)
    first, second = jnp.split(x_BxTxNxD, 2, axis=-1)
    return jnp.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)
