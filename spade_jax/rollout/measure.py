"""What a rollout's episodes say about each environment: paired returns, wins, voids."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from spade_jax import structs
from spade_jax.designer import reward
from spade_jax.runtime.flops import peak_flops_per_second
from spade_jax.sampler import Counters
from spade_jax.sandbox.replies import INFRASTRUCTURE


@dataclasses.dataclass(frozen=True)
class Plays:
    """One environment's plays in one rollout; S seeds, both arms in the same seed order.

    Attributes:
      environment_id: the environment.
      seed_indices: int64[S].
      plain: float64[S] returns without hint, NaN where void.
      hinted: float64[S] returns with hint, NaN where void.
      won: float64[S] 1 for a success without hint, 0 for none, NaN where void.
      won_hinted: float64[S] the same with hint.
    """

    environment_id: str
    seed_indices: np.ndarray
    plain: np.ndarray
    hinted: np.ndarray
    won: np.ndarray
    won_hinted: np.ndarray

    def paired(self) -> tuple[list, list, list, list]:
        """(seed indices, plain, hinted, won) as lists with None for void: what `DelayedQueue.observe` takes."""
        arrays = (self.plain, self.hinted, self.won)
        plain, hinted, won = ([None if np.isnan(v) else float(v) for v in array] for array in arrays)
        return self.seed_indices.tolist(), plain, hinted, [None if w is None else bool(w) for w in won]


def measure(environment_ids: Sequence[str], episodes: Sequence[structs.Episode]) -> list[Plays]:
    """Sorts `episodes` by environment, arm and seed; every environment has both arms of each seed."""
    by_place: dict[tuple[str, str], list[structs.Episode]] = {}
    for episode in episodes:
        by_place.setdefault((episode.environment_id, episode.arm), []).append(episode)
    return [
        _plays(environment_id, by_place[environment_id, structs.PLAIN], by_place[environment_id, structs.HINTED])
        for environment_id in environment_ids
    ]


def _plays(environment_id: str, plain: list[structs.Episode], hinted: list[structs.Episode]) -> Plays:
    plain, hinted = (sorted(arm, key=lambda episode: episode.seed_index) for arm in (plain, hinted))
    return Plays(
        environment_id=environment_id,
        seed_indices=np.array([episode.seed_index for episode in plain], np.int64),
        plain=_returns(plain),
        hinted=_returns(hinted),
        won=wins(plain),
        won_hinted=wins(hinted),
    )


def _returns(episodes: list[structs.Episode]) -> np.ndarray:
    return np.array([np.nan if e.status == structs.VOID else e.episode_return for e in episodes], np.float64)


def wins(episodes: Sequence[structs.Episode]) -> np.ndarray:
    """float64[N]: 1 for a success, 0 for none, NaN where void, which is no fault of the agent."""
    return np.array([np.nan if e.status == structs.VOID else float(e.won) for e in episodes], np.float64)


def mean_or_nan(values: Sequence[float] | np.ndarray) -> float:
    """Mean of the finite values; NaN where there are none, without a warning."""
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else float("nan")


def regret_statistics(
    plays: Sequence[Plays], config: reward.RewardConfig, rng: np.random.Generator
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Regret of every environment, and of the rollout as a whole.

    Args:
      plays: one per environment.
      config: pairing and least number of pairs.
      rng: swaps arm labels for the null.

    Returns:
      ({environment id: statistics for the memory}, {tag: value}). The rollout's standard
      error is that of a mean over E independent environments, sqrt(sum se_e^2) / E; the
      null's is sqrt(sum_e mean_s d_s^2 / S_e) / E, since swapping makes d_s symmetric.
    """
    statistics: dict[str, dict[str, float]] = {}
    regrets, nulls, null_variances = [], [], []
    for p in plays:
        measured = reward.regret(p.plain, p.hinted, config)
        statistics[p.environment_id] = {
            "regret": measured.mean,
            "regret_se": measured.se,
            "pairs": measured.pairs,
            "win_rate": mean_or_nan(p.won),
            "win_rate_hinted": mean_or_nan(p.won_hinted),
            "return": mean_or_nan(p.plain),
        }
        if measured.enough:
            regrets.append(measured)
            nulls.append(reward.null_regret(p.plain, p.hinted, rng))
            difference = p.hinted - p.plain
            null_variances.append(np.nanmean(difference**2) / measured.pairs)
    mean_E = np.array([r.mean for r in regrets])
    se_E = np.array([r.se for r in regrets])
    win_rate_E = np.array([statistics[p.environment_id]["win_rate"] for p in plays])
    count = len(regrets) or float("nan")
    scale = reward.regret_scale(se_E, config)
    return statistics, {
        "designer/regret": mean_or_nan(mean_E),
        "designer/regret_se": float(np.sqrt(np.nansum(se_E**2))) / count,
        "designer/regret_null": mean_or_nan(nulls),
        "designer/regret_null_se": float(np.sqrt(np.sum(null_variances))) / count,
        "designer/negative_share": reward.negative_share(mean_E),
        "designer/saturated_share": reward.saturated_share(mean_E, scale),
        "designer/learnable_share": mean_or_nan((win_rate_E >= 0.2) & (win_rate_E <= 0.8)),
    }


def agent_metrics(episodes: Sequence[structs.Episode]) -> dict[str, float]:
    """{tag: value} over one rollout's episodes of both arms."""
    plain = [e for e in episodes if e.arm == structs.PLAIN and e.status != structs.VOID]
    hinted = [e for e in episodes if e.arm == structs.HINTED and e.status != structs.VOID]
    return {
        "agent/win_rate": mean_or_nan([e.won for e in plain]),
        "agent/win_rate_hinted": mean_or_nan([e.won for e in hinted]),
        "agent/return": mean_or_nan([e.episode_return for e in plain]),
        "agent/turns": mean_or_nan([len(e.turns) for e in plain]),
        "agent/void_share": mean_or_nan([e.status == structs.VOID for e in episodes]),
        "agent/deadline_share": mean_or_nan([e.reason == structs.PAST_DEADLINE for e in episodes]),
        "agent/infrastructure_share": mean_or_nan([e.reason.startswith(f"{INFRASTRUCTURE}:") for e in episodes]),
    }


def performance(
    counters: Counters, episodes: Sequence[structs.Episode], *, play_seconds: float
) -> dict[str, float]:
    """{tag: value} of the speed of one step's rollout."""
    sample_seconds = max(counters.prefill_seconds + counters.decode_seconds, 1e-9)
    return {
        "perf/sample_tokens_per_s": counters.sampled_tokens / sample_seconds,
        "perf/slot_occupancy": counters.occupancy,
        "perf/stale_cache_share": counters.stale_tokens / max(counters.sampled_tokens, 1),
        "perf/env_steps_per_s": sum(len(episode.turns) for episode in episodes) / max(play_seconds, 1e-9),
    }


def update_performance(trained_tokens: int, seconds: float, flops_per_token: float) -> dict[str, float]:
    """{tag: value} of the speed of one update."""
    rate = trained_tokens / max(seconds, 1e-9)
    peak = peak_flops_per_second()
    return ({"perf/mfu": flops_per_token * rate / peak} if peak else {}) | {"perf/train_tokens_per_s": rate}
