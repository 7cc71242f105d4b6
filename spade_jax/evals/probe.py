"""The held-out probe: win rates on bundled environments that nothing is ever trained on.

Three suites, from near to far: `instance` holds unseen programs of families and
difficulties that the warm start has seen, `range` those families at difficulties kept out
of it, `family` families kept out altogether. The instances are the same for every policy,
so that two policies are compared on pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from spade_jax import structs
from spade_jax.envs.bundled import Bundled
from spade_jax.rollout.episodes import EpisodeRequest, EpisodeSettings, play_episodes
from spade_jax.rollout.measure import mean_or_nan, wins
from spade_jax.runtime.seeds import array_rng, environment_seed
from spade_jax.sampler import Engine
from spade_jax.sandbox import Pool
from spade_jax.tokens import chat


def play_probe(
    engine: Engine,
    pool: Pool,
    template: chat.ChatTemplate,
    probe: Sequence[Bundled],
    settings: EpisodeSettings,
    *,
    arm: str = structs.PLAIN,
    label: str,
) -> list[structs.Episode]:
    """One episode per bundled environment, in order; `label` makes the conversation ids unique."""
    requests = [
        EpisodeRequest(
            record=bundled.record,
            arm=arm,
            seed_index=0,
            seed=environment_seed(bundled.record.id, 0),
            conversation_id=f"{label}/{arm}/{index}",
        )
        for index, bundled in enumerate(probe)
    ]
    return play_episodes(engine, pool, template, requests, settings)


def probe_metrics(probe: Sequence[Bundled], episodes: Sequence[structs.Episode]) -> dict[str, float]:
    """{tag: win rate} by suite and family, and over all, of the plays that counted; and the share that was void."""
    won = wins(episodes)
    suite = np.array([bundled.suite for bundled in probe])
    family = np.array([bundled.family.name for bundled in probe])
    metrics = {"eval/probe/all": mean_or_nan(won), "eval/probe/void": mean_or_nan(np.isnan(won))}
    for name in np.unique(suite):
        metrics[f"eval/probe/{name}"] = mean_or_nan(won[suite == name])
        for task in np.unique(family[suite == name]):
            metrics[f"eval/{name}/{task}"] = mean_or_nan(won[(suite == name) & (family == task)])
    return metrics


def bootstrap_interval(
    values: np.ndarray, *, rng: np.random.Generator, samples: int = 10_000
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of a mean over seeds and episodes.

    Args:
      values: float[R, N], R runs (seeds) of N episodes; episode n is the same instance in every run. NaN counts for
        nothing.
      rng: the source of resampling.
      samples: number of resamples.

    Returns:
      (low, high) of the mean when runs and instances are both resampled with replacement;
      NaN where `values` has no number.
    """
    runs, episodes = values.shape
    means = np.empty(samples)
    for i in range(samples):
        rows = rng.integers(0, runs, runs)
        columns = rng.integers(0, episodes, episodes)
        means[i] = mean_or_nan(values[np.ix_(rows, columns)])
    means = means[np.isfinite(means)]  # a resample may hold nothing but void plays
    if not len(means):
        return float("nan"), float("nan")
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def compare(start_N: np.ndarray, trained_RxN: np.ndarray) -> dict[str, Any]:
    """R trained policies against their common start on N instances: win rates, gain and its interval, void share.

    Void plays (NaN) count for nothing: each win rate is over the plays that counted, the
    gain over the instances that counted at the start and after training.
    """
    gains_RxN = trained_RxN - start_N
    return {
        "start": mean_or_nan(start_N),
        "trained": mean_or_nan(trained_RxN),
        "gain": mean_or_nan(gains_RxN),
        "interval": bootstrap_interval(gains_RxN, rng=array_rng("evaluate")),
        "void": float(np.isnan(np.vstack([start_N, trained_RxN])).mean()),
    }
