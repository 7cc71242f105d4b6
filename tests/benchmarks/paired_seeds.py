"""What pairing seeds gains on the bundled families: `python tests/benchmarks/paired_seeds.py`.

The embedded policy plays programs of every family of the warm start with and without the hint, on
the same seeds. Prints, per family and over all, both win rates and the standard error of regret as
measured on pairs over that of two independent arms: below 1 where a seed that is hard in one arm is
hard in the other. Over all, the squares of the standard errors are averaged first; the figure in
brackets is the error of that ratio, over programs.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "configs")]

import spade_tiny  # noqa: E402 (found by the path above)

from spade_jax import compose, structs  # noqa: E402
from spade_jax.designer import reward  # noqa: E402
from spade_jax.envs import bundled  # noqa: E402
from spade_jax.envs.families import base  # noqa: E402
from spade_jax.rollout import measure  # noqa: E402
from spade_jax.rollout.episodes import EpisodeRequest, play_episodes  # noqa: E402
from spade_jax.runtime.presets import resolve_preset  # noqa: E402
from spade_jax.runtime.seeds import environment_seed  # noqa: E402


def play(programs: int, seeds: int, temperature: float) -> list[tuple[str, measure.Plays]]:
    """(family, plays) of `programs` programs of each family, each on `seeds` seeds in both arms."""
    config = resolve_preset(spade_tiny.get_config())
    with compose.sandbox_pool(config) as pool:
        template = compose.chat_template(config)
        model, params = compose.policy(config, template)
        engine = compose.engine(config, model, params, template, compose.mesh(config, model))
        settings = compose.episode_settings(config)
        sampling = dataclasses.replace(settings.sampling, temperature=temperature)
        count = programs * sum(not family.held_out for family in bundled.families_of("game"))
        drawn = bundled.bundled_records(base.TRAIN, count, seed=0)
        requests = [
            EpisodeRequest(d.record, arm, seed, environment_seed(d.record.id, seed), f"{i}/{seed}/{arm}")
            for i, d in enumerate(drawn)
            for seed in range(seeds)
            for arm in (structs.PLAIN, structs.HINTED)
        ]
        settings = dataclasses.replace(settings, sampling=sampling)
        episodes = play_episodes(engine, pool, template, requests, settings)
    plays = measure.measure([d.record.id for d in drawn], episodes)
    return [(d.family.name, p) for d, p in zip(drawn, plays, strict=True)]


def variances(plays: list[measure.Plays]) -> np.ndarray:
    """float[E, 2]: square of the standard error of each program's regret, paired and unpaired."""
    return np.array(
        [[reward.regret(p.plain, p.hinted, c).se ** 2 for c in (reward.STRICT, reward.PAPER)] for p in plays]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--programs", type=int, default=2, help="of each family")
    parser.add_argument("--seeds", type=int, default=16, help="plays of each program and arm")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the policy; the paper's is 0.6")
    args = parser.parse_args()
    by_family = collections.defaultdict(list)
    for family, plays in play(args.programs, args.seeds, args.temperature):
        by_family[family].append(plays)
    print(f"{'family':<20}{'plain':>8}{'hinted':>8}{'ratio':>8}")
    everything = [p for plays in by_family.values() for p in plays]
    for family, of_family in [*by_family.items(), ("all", everything)]:
        paired, unpaired = variances(of_family).mean(axis=0)
        ratio = f"{np.sqrt(paired / unpaired):>8.3f}" if unpaired else f"{'-':>8}"
        won = measure.mean_or_nan(np.concatenate([p.won for p in of_family]))
        hinted = measure.mean_or_nan(np.concatenate([p.won_hinted for p in of_family]))
        print(f"{family:<20}{won:>8.2f}{hinted:>8.2f}{ratio}")
    # Of sqrt(P / U), by the delta method over programs.
    paired_E, unpaired_E = variances(everything).T
    ratio = np.sqrt(paired_E.mean() / unpaired_E.mean())
    residual_E = paired_E / paired_E.mean() - unpaired_E / unpaired_E.mean()
    print(f"ratio over all: {ratio:.3f} ({ratio / 2 * residual_E.std(ddof=1) / np.sqrt(len(residual_E)):.3f})")


if __name__ == "__main__":
    main()
