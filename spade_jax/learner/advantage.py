"""From returns to advantages: one pure function of (returns, roles, groups, baselines).

Axes: N trajectories, G group ids, K rows of the baseline table.

Sources: SPIRAL, arXiv:2506.24119 (`ema`, role-conditioned advantage estimation); SPADE, arXiv:2608.19197
(`group_zscore` for the agent, `group_mean` for the designer); `leave_one_out` is the unbiased form of `group_mean`
(Kool et al. 2019; RLOO, arXiv:2402.14740).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh

from spade_jax.learner import partitioning

ESTIMATORS = ("ema", "group_zscore", "group_mean", "leave_one_out", "none")


class Advantages(NamedTuple):
    """What `estimate` returns.

    Attributes:
      advantage: float32[N], 0 where invalid.
      keep: bool[N], False for rows that carry no gradient: invalid ones, groups without variance, groups of one,
        and, under `ema`, returns equal to their baseline; under `none`, returns of 0.
      baselines: float32[K], the table after all valid `ema` rows.
    """

    advantage: jax.Array
    keep: jax.Array
    baselines: jax.Array


def ema_advantages(
    returns_N: jax.Array, group_N: jax.Array, valid_N: jax.Array, baselines_K: jax.Array, decay: float
) -> tuple[jax.Array, jax.Array]:
    """A_i = R_i - b[g_i]; then b[g_i] <- decay * b[g_i] + (1 - decay) * R_i; for i = 0, 1, ... in order.

    The advantage uses the baseline from before its own update (SPIRAL's listing updates first, which multiplies every
    advantage by `decay`). Rows of one (game, role) are folded one after another by a scan, so a step with many
    episodes equals the recursion of the paper, whatever the number of games interleaved with it. A row is an
    *episode*: with one trajectory per turn, estimate on episodes and give every turn its episode's advantage.

    Returns:
      float32[N] advantages (0 where invalid), float32[K] new baselines.
    """

    def fold(table_K: jax.Array, row: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, g, valid = row
        before = table_K[g]
        after = decay * before + (1.0 - decay) * reward
        return table_K.at[g].set(jnp.where(valid, after, before)), jnp.where(valid, reward - before, 0.0)

    table_K, advantage_N = lax.scan(fold, baselines_K, (returns_N, group_N, valid_N))
    return advantage_N, table_K


def estimate(
    returns_N: jax.Array,
    role_N: jax.Array,
    group_N: jax.Array,
    valid_N: jax.Array,
    baselines_K: jax.Array,
    *,
    estimators: tuple[str, ...],
    num_groups: int,
    ema_decay: float = 0.95,
) -> Advantages:
    """Advantages of N returns under each role's own estimator.

    With n, mean, and sd (population: divided by n) over the valid rows of a row's (role, group):

      ema            R - b[group]; see `ema_advantages`
      group_zscore   (R - mean) / sd
      group_mean     R - mean
      leave_one_out  R - (n mean - R) / (n - 1), and 0 where n = 1
      none           R

    Args:
      returns_N: float32[N].
      role_N: int32[N], index into `estimators`.
      group_N: int32[N] in [0, num_groups); the row of the baseline table for a role under `ema`. Groups of
        different roles never mix, even where their ids coincide.
      valid_N: bool[N], False for padding and void rows: they influence nothing.
      baselines_K: float32[K].
      estimators: static, one name of ESTIMATORS per role.
      num_groups: static bound of the group ids; also K or more where a role uses `ema`.
      ema_decay: weight of the old baseline.

    Raises:
      ValueError: an unknown estimator.
    """
    unknown = [name for name in estimators if name not in ESTIMATORS]
    if unknown:
        raise ValueError(f"learner.estimator={unknown[0]!r} is unknown; use one of {', '.join(ESTIMATORS)}")
    returns_N = jnp.where(valid_N, returns_N, 0.0).astype(jnp.float32)
    segment_N = jnp.where(valid_N, role_N * num_groups + group_N, len(estimators) * num_groups)
    segments = len(estimators) * num_groups + 1  # the last collects the invalid rows

    def total(x_N: jax.Array) -> jax.Array:
        return jax.ops.segment_sum(x_N, segment_N, segments)[segment_N]

    count_N = total(jnp.ones_like(returns_N))
    mean_N = total(returns_N) / count_N
    centred_N = returns_N - mean_N
    sd_N = jnp.sqrt(total(centred_N**2) / count_N)
    # Equal extremes, not a small deviation, mean "no variance": rounding of the mean cannot fake a difference.
    high_N = jax.ops.segment_max(returns_N, segment_N, segments)[segment_N]
    low_N = jax.ops.segment_min(returns_N, segment_N, segments)[segment_N]
    varied_N = high_N > low_N

    advantage_N = jnp.zeros_like(returns_N)
    keep_N = jnp.zeros_like(valid_N)
    for role, name in enumerate(estimators):
        mine_N = valid_N & (role_N == role)
        if name in ("ema", "none"):
            value_N = returns_N
            if name == "ema":
                value_N, baselines_K = ema_advantages(returns_N, group_N, mine_N, baselines_K, ema_decay)
            useful_N = value_N != 0.0
        else:
            useful_N = varied_N
            if name == "group_zscore":
                value_N = centred_N / jnp.where(varied_N, sd_N, 1.0)
            elif name == "group_mean":
                value_N = centred_N
            else:
                # R - (sum - R) / (n - 1) = (R - mean) n / (n - 1)
                value_N = centred_N * count_N / jnp.maximum(count_N - 1.0, 1.0)
            value_N = jnp.where(varied_N, value_N, 0.0)
        advantage_N = jnp.where(mine_N, value_N, advantage_N)
        keep_N = jnp.where(mine_N, useful_N, keep_N)
    return Advantages(advantage_N, keep_N, baselines_K)


_estimate = jax.jit(estimate, static_argnames=("estimators", "num_groups", "ema_decay"))


def estimate_on_hosts(
    mesh: Mesh,
    returns: np.ndarray,
    roles: np.ndarray,
    groups: np.ndarray,
    valid: np.ndarray,
    baselines_K: jax.Array,
    *,
    estimators: tuple[str, ...],
    num_groups: int,
    ema_decay: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, jax.Array]:
    """`estimate` of host arrays, which every process holds alike; padded to a power of two, so few shapes are compiled.

    Returns:
      float32[N] advantages, bool[N] keep, and the new replicated baseline table.
    """
    n = len(returns)
    size = 1 << (max(n, 1) - 1).bit_length()

    def padded(x: np.ndarray, dtype: type) -> np.ndarray:
        return np.pad(np.asarray(x, dtype), (0, size - n))

    host = (padded(returns, np.float32), padded(roles, np.int32), padded(groups, np.int32), padded(valid, bool))
    rows = partitioning.global_copies(mesh, host)
    with jax.set_mesh(mesh):
        result = functools.partial(_estimate, estimators=estimators, num_groups=num_groups, ema_decay=ema_decay)(
            *rows, baselines_K
        )
    advantage, keep = jax.device_get((result.advantage, result.keep))
    return advantage[:n], keep[:n], result.baselines
