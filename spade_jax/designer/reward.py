"""What the designer is paid: regret, plateau, failure classes.

Formulas: SPADE as published (`PAPER`) and ours (`STRICT`). Every deviation is one
switch of `RewardConfig`, so each is an ablation and PAPER is the switches set back.
Centring (the leave-one-out mean of the skill) is the learner's estimator, not ours.

Axis legend: E environments, S seeds (one play per seed and arm), N plays or samples.
"""

from __future__ import annotations

import dataclasses

import numpy as np

REGRET_WEIGHT = 0.4
PLATEAU_WEIGHT = 0.6
REGRET_SCALE = 0.15
PLATEAU_LOW, PLATEAU_HIGH, PLATEAU_RAMP = 0.4, 0.6, 0.25
UNVERIFIED_CAP = 0.5

INFRASTRUCTURE = "infrastructure"  # a fault of ours: masked, never a reward

# Reward of a program that the gate rejected, by failure class.
FAILURE_REWARD = {
    "no_code": -1.0,
    "unparsable": -1.0,
    "banned": -1.0,
    "contract": -0.8,
    "crash": -0.6,
    "timeout": -0.6,
    "memory": -0.6,
    "nondeterministic": -0.5,
    "unsolvable": -0.4,
    "trivial": -0.4,
    "not_varied": -0.4,  # one instance for every seed is learnt by heart: as trivial
    "leak": -0.3,
    "duplicate": -0.2,
}


@dataclasses.dataclass(frozen=True)
class RewardConfig:
    """The switches between the published reward and ours.

    Attributes:
      paired: standard error from per-seed differences, not from two independent arms.
      min_pairs: fewer valid pairs give no reward at all.
      floor_regret: negative regret counts as 0.
      adaptive_scale: regret is divided by max(.15, 2 median SE), not by .15.
      seed_variance_penalty: the plateau shrinks where the seed alone decides the outcome.
      cap_unverified: a program whose solution was never seen to win earns at most half.
      failure_rewards: rejected programs are paid `FAILURE_REWARD`, not dropped.
      invalid_share_cap: most of the total |advantage| that rejected programs may hold.
    """

    paired: bool
    min_pairs: int
    floor_regret: bool
    adaptive_scale: bool
    seed_variance_penalty: bool
    cap_unverified: bool
    failure_rewards: bool
    invalid_share_cap: float


PAPER = RewardConfig(
    paired=False,
    min_pairs=1,
    floor_regret=True,
    adaptive_scale=False,
    seed_variance_penalty=False,
    cap_unverified=False,
    failure_rewards=False,
    invalid_share_cap=1.0,
)
STRICT = RewardConfig(
    paired=True,
    min_pairs=8,
    floor_regret=False,
    adaptive_scale=True,
    seed_variance_penalty=True,
    cap_unverified=True,
    failure_rewards=True,
    invalid_share_cap=0.5,
)
PRESETS = {"paper": PAPER, "strict": STRICT}


@dataclasses.dataclass(frozen=True)
class Regret:
    """Regret of one environment.

    Attributes:
      mean: mean return with hint minus mean return without, raw (may be negative).
      se: standard error of `mean`; NaN with fewer than two pairs.
      pairs: number of seeds whose two plays were both valid.
      enough: whether `pairs` reaches the configured minimum.
    """

    mean: float
    se: float
    pairs: int
    enough: bool


def regret(plain_S: np.ndarray, hinted_S: np.ndarray, config: RewardConfig = STRICT) -> Regret:
    """Regret over S seeds, float[S] returns of each arm in the same seed order.

    NaN marks a void play; its pair is dropped. With d_s = hinted_s - plain_s:
    mean d, and SE = sd(d) / sqrt(S) (paired) or sqrt((var plain + var hinted) / S).
    """
    plain_S, hinted_S = _valid_pairs(plain_S, hinted_S)
    pairs = len(plain_S)
    if pairs == 0:
        return Regret(float("nan"), float("nan"), 0, False)
    difference_S = hinted_S - plain_S
    se = float("nan")
    if pairs > 1:
        of_S = (difference_S,) if config.paired else (plain_S, hinted_S)
        variance = sum(np.var(values_S, ddof=1) for values_S in of_S)
        se = float(np.sqrt(variance / pairs))
    return Regret(float(np.mean(difference_S)), se, pairs, pairs >= config.min_pairs)


def null_regret(plain_S: np.ndarray, hinted_S: np.ndarray, rng: np.random.Generator) -> float:
    """Regret after each pair's arm labels are swapped by a fair coin: must stay near 0.

    NaN where no valid pair is left.
    """
    plain_S, hinted_S = _valid_pairs(plain_S, hinted_S)
    if len(plain_S) == 0:
        return float("nan")
    sign_S = rng.choice(np.array([-1.0, 1.0]), size=len(plain_S))
    return float(np.mean(sign_S * (hinted_S - plain_S)))


def regret_scale(se_E: np.ndarray, config: RewardConfig = STRICT) -> float:
    """What regret is divided by: .15, or max(.15, 2 median SE) over the E environments."""
    se_E = np.asarray(se_E, np.float64)
    se_E = se_E[np.isfinite(se_E)]
    if not config.adaptive_scale or len(se_E) == 0:
        return REGRET_SCALE
    return max(REGRET_SCALE, 2.0 * float(np.median(se_E)))


def negative_share(regret_E: np.ndarray) -> float:
    """Share of environments in which the hint did harm (raw regret < 0); NaN for none."""
    regret_E = np.asarray(regret_E, np.float64)
    return float(np.mean(regret_E < 0)) if len(regret_E) else float("nan")


def saturated_share(regret_E: np.ndarray, scale: float) -> float:
    """Share of environments whose regret reaches the scale, so that more pays nothing."""
    regret_E = np.asarray(regret_E, np.float64)
    return float(np.mean(regret_E >= scale)) if len(regret_E) else float("nan")


def plateau(win_rate: float) -> float:
    """1 for a win rate in [.4, .6], falling linearly to 0 over .25 on each side."""
    outside = max(PLATEAU_LOW - win_rate, win_rate - PLATEAU_HIGH, 0.0)
    return max(0.0, 1.0 - outside / PLATEAU_RAMP)


def seed_dependence(seed_N: np.ndarray, won_N: np.ndarray) -> float | None:
    """Between-seed variance of the win rate over p(1-p): 0 = luck or skill, 1 = the seed decides.

    Args:
      seed_N: int[N] seed of each play without hint.
      won_N: bool[N] its outcome.

    The between-seed variance is the sample variance of the seeds' win rates m_s minus
    what plays alone explain, the mean of m_s (1 - m_s) / (n_s - 1) (the unbiased
    variance of a mean of n_s coin flips). Only seeds played at least twice count;
    None where fewer than two of them exist or all plays ended alike.
    """
    seed_N, won_N = np.asarray(seed_N), np.asarray(won_N, np.float64)
    _, index_N, count_S = np.unique(seed_N, return_inverse=True, return_counts=True)
    rate_S = np.bincount(index_N, weights=won_N, minlength=len(count_S)) / count_S
    repeated_S = count_S >= 2
    if repeated_S.sum() < 2:
        return None
    rate_S, count_S = rate_S[repeated_S], count_S[repeated_S]
    win_rate = float(np.average(rate_S, weights=count_S))
    spread = win_rate * (1.0 - win_rate)
    if spread == 0.0:
        return None
    between = np.var(rate_S, ddof=1) - np.mean(rate_S * (1.0 - rate_S) / (count_S - 1))
    return float(np.clip(between / spread, 0.0, 1.0))


def designer_reward(
    regret_mean: float,
    win_rate: float,
    *,
    scale: float,
    dependence: float | None,
    solvable: bool,
    config: RewardConfig = STRICT,
) -> float:
    """Reward of one valid program: .4 * clipped regret / scale + .6 * plateau(win rate).

    Args:
      regret_mean: raw mean regret.
      win_rate: share of wins without hint over the whole window.
      scale: from `regret_scale`.
      dependence: from `seed_dependence`; None leaves the plateau alone.
      solvable: whether the gate saw the program's own solution win.

    The regret term is clipped to [0, 1] with the floor and to [-1, 1] without it:
    a floor turns the noise of a regret of 0 into income.
    """
    lowest = 0.0 if config.floor_regret else -1.0
    regret_term = float(np.clip(regret_mean / scale, lowest, 1.0))
    plateau_term = plateau(win_rate)
    if config.seed_variance_penalty and dependence is not None:
        plateau_term *= 1.0 - dependence
    reward = REGRET_WEIGHT * regret_term + PLATEAU_WEIGHT * plateau_term
    if config.cap_unverified and not solvable:
        reward = min(reward, UNVERIFIED_CAP)
    return reward


def failure_reward(failure: str, config: RewardConfig = STRICT) -> float | None:
    """Reward of a rejected program; None where it gives no gradient."""
    if failure == INFRASTRUCTURE or not config.failure_rewards:
        return None
    return FAILURE_REWARD[failure]


def cap_invalid_share(advantage_N: np.ndarray, invalid_N: np.ndarray, config: RewardConfig = STRICT) -> np.ndarray:
    """Scales the rejected programs' advantages so that they hold at most the capped share.

    Args:
      advantage_N: float[N] centred advantages of one batch of designer samples.
      invalid_N: bool[N] which samples are rejected programs.

    Returns:
      float[N]. With cap c, valid mass V and invalid mass I = sum |A|, invalid entries are
      multiplied by min(1, c V / ((1 - c) I)); hence by 0 where nothing valid is left.
    """
    advantage_N = np.asarray(advantage_N, np.float64)
    invalid_N = np.asarray(invalid_N, bool)
    cap = config.invalid_share_cap
    invalid = float(np.abs(advantage_N[invalid_N]).sum())
    valid = float(np.abs(advantage_N[~invalid_N]).sum())
    if cap >= 1.0 or invalid == 0.0:
        return advantage_N
    factor = min(1.0, cap * valid / ((1.0 - cap) * invalid))
    return np.where(invalid_N, advantage_N * factor, advantage_N)


def _valid_pairs(plain_S: np.ndarray, hinted_S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    plain_S, hinted_S = np.asarray(plain_S, np.float64), np.asarray(hinted_S, np.float64)
    if plain_S.shape != hinted_S.shape or plain_S.ndim != 1:
        raise ValueError(f"arms of shapes {plain_S.shape} and {hinted_S.shape} are not paired seed by seed")
    valid_S = np.isfinite(plain_S) & np.isfinite(hinted_S)
    return plain_S[valid_S], hinted_S[valid_S]
