"""The clipped policy-gradient objective, as sums that add up over micro-batches.

Axes: B rows, T tokens.

Per generated token, with rho = pi / pi_old and w = min(pi_old / mu, tis_cap):

    loss_t = -w * min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) + kl_coefficient * k3_t
    k3_t   = pi_ref / pi - log(pi_ref / pi) - 1

The clip is PPO's (arXiv:1707.06347) with DAPO's separate bounds (arXiv:2503.14476); k3 is Schulman's estimator; w
corrects for the distribution mu that really drew the token and carries no gradient. Aggregation over the rows of an
update (weight > 0 only):

    token_mean       sum of all tokens' losses / number of tokens
    sequence_mean    mean over rows of the row's mean token loss
    constant_length  sum of all tokens' losses / (rows * constant_length), which does not favour short responses

A row's weight times its role's weight multiplies its loss, and not the divisor.
"""

from __future__ import annotations

import dataclasses
import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from spade_jax.structs import ROLES, Batch

AGGREGATIONS = ("token_mean", "sequence_mean", "constant_length")

# exp(20) is far outside every clip range. Without the bound a token whose probability collapsed overflows the ratio,
# and the branch that the clip discards still contributes 0 * inf = NaN to the gradient.
_MAX_LOG_RATIO = 20.0


@dataclasses.dataclass(frozen=True)
class ObjectiveConfig:
    """Attributes:
    clip_low, clip_high: rho is clipped to [1 - clip_low, 1 + clip_high].
    tis_cap: upper bound of the importance weight pi_old / mu.
    kl_coefficient: weight of the KL to the reference policy; 0 needs no reference.
    aggregation: one of AGGREGATIONS.
    constant_length: divisor of `constant_length`, in tokens.
    role_weight: multiplies the loss of each role, by role id.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    tis_cap: float = 2.0
    kl_coefficient: float = 0.0
    aggregation: str = "token_mean"
    constant_length: int = 1024
    role_weight: tuple[float, ...] = (1.0,) * len(ROLES)

    def __post_init__(self) -> None:
        if self.aggregation not in AGGREGATIONS:
            raise ValueError(
                f"learner.aggregation={self.aggregation!r} is unknown; use one of {', '.join(AGGREGATIONS)}"
            )
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise ValueError(
                f"learner.clip_low={self.clip_low}, clip_high={self.clip_high} is no range around 1; "
                "use 0 <= clip_low < 1 and clip_high >= 0"
            )
        if self.tis_cap <= 0 or self.constant_length < 1:
            raise ValueError(
                f"learner.tis_cap={self.tis_cap} and constant_length={self.constant_length} must be positive"
            )
        if len(self.role_weight) != len(ROLES):
            raise ValueError(f"learner.role_weight={self.role_weight} needs one weight for each role of {ROLES}")


class Sums(NamedTuple):
    """Sums over tokens or rows of one micro-batch; float32 scalars. Add them, but take the maximum of `..._max`.

    Attributes:
      normaliser: what `loss` is divided by: tokens, rows, or rows * constant_length.
      loss: undivided loss; its gradient is divided by the same total.
      tokens, rows: those in the loss.
      clipped: tokens at which the clipped branch was the smaller one.
      entropy: nats. ratio: rho.
      kl: k3 estimate of KL(pi_old || pi).
      kl_reference: k3 estimate of KL(pi || pi_ref), 0 without a reference.
      gap: |log pi_old - log mu|. gap_max: its maximum.
      tis: importance weight min(pi_old / mu, tis_cap). capped: tokens at which the cap was the smaller one.
      staleness: updates between a row's oldest token and now. staleness_max: its maximum.
      squares: |g|^2 / normaliser, g the undivided gradient; summed over micro-batches. micro_batches: those with a row.
        Both are the update's, which alone has gradients; see `gradient_variance`.
      router: float32[L, 2, E], the experts' load (`policy.experts.load`); None without experts.
    """

    normaliser: jax.Array
    loss: jax.Array
    tokens: jax.Array
    rows: jax.Array
    clipped: jax.Array
    entropy: jax.Array
    ratio: jax.Array
    kl: jax.Array
    kl_reference: jax.Array
    gap: jax.Array
    gap_max: jax.Array
    tis: jax.Array
    capped: jax.Array
    staleness: jax.Array
    staleness_max: jax.Array
    squares: jax.Array
    micro_batches: jax.Array
    router: jax.Array | None = None

    @classmethod
    def zero(cls, router_shape: tuple[int, ...] | None = None) -> Sums:
        router = None if router_shape is None else jnp.zeros(router_shape, jnp.float32)
        return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields[:-1]), router=router)

    def add(self, other: Sums) -> Sums:
        added = jax.tree.map(operator.add, self, other)
        return added._replace(
            gap_max=jnp.maximum(self.gap_max, other.gap_max),
            staleness_max=jnp.maximum(self.staleness_max, other.staleness_max),
        )

    def metrics(self) -> dict[str, float]:
        """The means under their TensorBoard tags; for sums that were fetched to the host."""
        tokens, rows = max(float(self.tokens), 1.0), max(float(self.rows), 1.0)
        return self._router_metrics() | {
            "learner/loss": float(self.loss) / max(float(self.normaliser), 1.0),
            "learner/clip_share": float(self.clipped) / tokens,
            "learner/entropy": float(self.entropy) / tokens,
            "learner/ratio": float(self.ratio) / tokens,
            "learner/kl": float(self.kl) / tokens,
            "learner/kl_reference": float(self.kl_reference) / tokens,
            "learner/logp_gap_mean": float(self.gap) / tokens,
            "learner/logp_gap_max": float(self.gap_max),
            "learner/tis_weight": float(self.tis) / tokens,
            "learner/tis_capped_share": float(self.capped) / tokens,
            "learner/staleness": float(self.staleness) / rows,
            "learner/staleness_max": float(self.staleness_max),
            "learner/tokens": float(self.tokens),
        }

    def _router_metrics(self) -> dict[str, float]:
        """How evenly experts are used: both are 1 where all have the same load, at most E where one has all."""
        if self.router is None:
            return {}
        share_LxE, probability_LxE = (self.router / max(float(self.router[0, 0].sum()), 1.0)).swapaxes(0, 1)
        count = share_LxE.shape[-1]
        return {
            "learner/router_balance": float((share_LxE * probability_LxE).sum(axis=-1).mean()) * count,
            "learner/router_max_load": float(share_LxE.max()) * count,
        }


def policy_loss(
    logp_BxT: jax.Array,
    entropy_BxT: jax.Array,
    old_logp_BxT: jax.Array,
    batch: Batch,
    config: ObjectiveConfig,
    *,
    step: jax.Array,
    reference_logp_BxT: jax.Array | None = None,
) -> Sums:
    """The objective's sums on one micro-batch; differentiate `.loss` with respect to what made logp_BxT.

    Args:
      logp_BxT: float32[B, T], log pi of each token under the policy being trained, at the row's temperature.
      entropy_BxT: float32[B, T], for logging only.
      old_logp_BxT: float32[B, T], log pi_old: the policy at the start of the update.
      batch: rows of [B, T] arrays; a row of weight 0 (padding, or dropped) adds nothing to any sum.
      step: int32[], the update being made, for staleness.
      reference_logp_BxT: float32[B, T], needed where config.kl_coefficient > 0.

    Raises:
      ValueError: kl_coefficient > 0 without a reference.
    """
    if config.kl_coefficient > 0 and reference_logp_BxT is None:
        raise ValueError(
            f"learner.kl_coefficient={config.kl_coefficient} needs reference parameters; pass them or set it to 0"
        )
    real_B = batch.weight > 0
    mask_BxT = batch.loss_mask & real_B[:, None]
    # Index 0 of a row has no prediction: nothing precedes it.
    mask_BxT = mask_BxT.at[:, 0].set(False)
    real_B = real_B & mask_BxT.any(axis=1)
    old_logp_BxT = lax.stop_gradient(old_logp_BxT)

    def bounded(x_BxT: jax.Array) -> jax.Array:
        return jnp.where(mask_BxT, jnp.clip(x_BxT, -_MAX_LOG_RATIO, _MAX_LOG_RATIO), 0.0)

    def over_tokens(x_BxT: jax.Array) -> jax.Array:
        return jnp.sum(jnp.where(mask_BxT, x_BxT, 0.0))

    with jax.named_scope("objective"):
        log_rho_BxT = bounded(logp_BxT - old_logp_BxT)
        rho_BxT = jnp.exp(log_rho_BxT)
        advantage_Bx1 = batch.advantage[:, None]
        plain_BxT = rho_BxT * advantage_Bx1
        clipped_BxT = jnp.clip(rho_BxT, 1.0 - config.clip_low, 1.0 + config.clip_high) * advantage_Bx1
        off_policy_BxT = old_logp_BxT - batch.behaviour_logp
        importance_BxT = jnp.exp(bounded(off_policy_BxT))
        tis_BxT = jnp.minimum(importance_BxT, config.tis_cap)
        token_loss_BxT = -tis_BxT * jnp.minimum(plain_BxT, clipped_BxT)
        kl_reference = jnp.zeros((), jnp.float32)
        if reference_logp_BxT is not None:
            log_ratio_BxT = bounded(lax.stop_gradient(reference_logp_BxT) - logp_BxT)
            k3_BxT = jnp.exp(log_ratio_BxT) - log_ratio_BxT - 1.0
            token_loss_BxT = token_loss_BxT + config.kl_coefficient * k3_BxT
            kl_reference = over_tokens(k3_BxT)

        tokens_B = mask_BxT.sum(axis=1).astype(jnp.float32)
        tokens, rows = tokens_B.sum(), real_B.sum().astype(jnp.float32)
        row_loss_B = jnp.sum(jnp.where(mask_BxT, token_loss_BxT, 0.0), axis=1)
        if config.aggregation == "sequence_mean":
            row_loss_B = row_loss_B / jnp.maximum(tokens_B, 1.0)
        normaliser = {
            "token_mean": tokens,
            "sequence_mean": rows,
            "constant_length": rows * config.constant_length,
        }[config.aggregation]
        weight_B = batch.weight * jnp.asarray(config.role_weight, jnp.float32)[batch.role]
        staleness_B = jnp.where(real_B, step - batch.version, 0).astype(jnp.float32)
        gap_BxT = jnp.where(mask_BxT, jnp.abs(off_policy_BxT), 0.0)
        sums = Sums(
            normaliser=normaliser,
            loss=jnp.sum(jnp.where(real_B, weight_B * row_loss_B, 0.0)),
            tokens=tokens,
            rows=rows,
            clipped=over_tokens((clipped_BxT < plain_BxT).astype(jnp.float32)),
            entropy=over_tokens(entropy_BxT),
            ratio=over_tokens(rho_BxT),
            kl=over_tokens(rho_BxT - log_rho_BxT - 1.0),
            kl_reference=kl_reference,
            gap=gap_BxT.sum(),
            gap_max=gap_BxT.max(),
            tis=over_tokens(tis_BxT),
            capped=over_tokens((importance_BxT > config.tis_cap).astype(jnp.float32)),
            staleness=staleness_B.sum(),
            staleness_max=staleness_B.max(),
            squares=jnp.zeros((), jnp.float32),
            micro_batches=(rows > 0).astype(jnp.float32),
        )
    return sums


def gradient_variance(grad_norm: float, sums: Sums) -> float:
    """Estimate of E|g - E g|^2, the variance of the gradient g of one optimiser step, from its M micro-batches.

    With g_m the undivided gradient of micro-batch m, n_m its normaliser, N the sum of all n_m, and g = sum of g_m / N:

        (sum of |g_m|^2 / n_m  -  N |g|^2) / ((M - 1) N)

    which is unbiased where micro-batches are independent and E|g_m - n_m E g|^2 is in proportion to n_m (one-way
    analysis of variance; with two batch sizes it is the estimate of McCandlish et al., arXiv:1812.06162). Rows are
    dealt in turn to the micro-batches and so count as independent: what the turns of one episode share is not seen.
    Beside |g|^2 it says what part of a step is noise: E|g|^2 = |E g|^2 + variance.

    Args:
      grad_norm: |g|, before any clipping.
      sums: of the optimiser step.

    Returns:
      The estimate, NaN from fewer than two micro-batches; rounding may make it slightly negative where all are alike.
    """
    count, total = float(sums.micro_batches), float(sums.normaliser)
    return (float(sums.squares) / total - grad_norm**2) / (count - 1) if count > 1 else float("nan")
