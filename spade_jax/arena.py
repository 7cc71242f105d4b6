"""The games suite of `evaluate.py`: policies against opponents, against the truth, and against each other."""

from __future__ import annotations

import contextlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from spade_jax import compose
from spade_jax.envs.games import SEATS
from spade_jax.evals import games as evals
from spade_jax.evals import ratings
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.policy import Decoder, load_params, merge_adapters
from spade_jax.reporting.heatmap import heat_map
from spade_jax.rollout.endpoint import EndpointPlayer
from spade_jax.rollout.players import PolicyPlayer
from spade_jax.runtime import compile_cache
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.files import replacing
from spade_jax.runtime.workdir import checkpoint_folder
from spade_jax.sampler.score import score

START = "start"


class Contestant(NamedTuple):
    """A policy that takes part."""

    name: str
    params: Any


def games_suite(config: ConfigDict, workdirs: Sequence[str], out: str | None, *, snapshots: int) -> None:
    """Prints what the policies are worth; writes it to `out`, and the matrix of their matches beside it as .svg.

    The common start, every workdir's newest policy and snapshots of the way there take part.

    Args:
      snapshots: of all runs together at most, of each of them evenly from first to last.
    """
    run_names = _run_names(workdirs)
    template = compose.chat_template(config)
    compile_cache.enable_compile_cache(config.compile_cache.dir)
    model, initial_params = compose.policy(config, template)
    mesh = compose.mesh(config, model)
    optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
    state = compose.train_state(config, model, optimizer, mesh, initial_params)
    merged = Decoder(model.config.merged)
    shardings = state_lib.param_shardings(merged, mesh)
    contestants = [Contestant(START, state_lib.copy_params(merge_adapters(state.params, model.config)))]
    for workdir, run in zip(workdirs, run_names, strict=True):
        with Checkpointer(checkpoint_folder(workdir), keep=1, read_only=True) as checkpointer:
            restored = checkpointer.restore(state)
        if restored is None:
            raise UsageError(f"--workdirs: {workdir} holds no complete checkpoint; let the run save one")
        for step, path in _snapshots(workdir, restored.step, snapshots // len(workdirs)):
            params = partitioning.global_copies(mesh, load_params(path)[0], shardings)
            contestants.append(Contestant(f"{run}@{step}", params))
        newest = merge_adapters(restored.state.params, model.config)
        contestants.append(Contestant(f"{run}@{restored.step}", newest))

    temperature = config.evaluation.temperature
    engines = [compose.engine(config, merged, contestants[0].params, template, mesh) for _ in range(SEATS)]
    playing = compose.policy_settings(config, temperature)
    first, second = (PolicyPlayer(engine, template, playing) for engine in engines)
    settings = compose.game_evaluation(config)
    players = evals.scripted_players() | {evals.POLICY: first}
    if "initial" in settings.opponents:
        engines[1].set_params(contestants[0].params, 0)
        players["initial"] = second

    figures: dict[str, Any] = {"policies": {}}
    with contextlib.ExitStack() as stack:
        if "endpoint" in settings.opponents:
            players["endpoint"] = EndpointPlayer(compose.endpoint_settings(config))
            stack.callback(players["endpoint"].close)
        for number, (name, params) in enumerate(contestants):
            engines[0].set_params(params, number)
            rows, values = evals.measure(
                players, lambda pairs, params=params: score(merged, params, pairs, temperature), template, settings
            )
            figures["policies"][name] = {"opponents": rows, "truth": values}
            _print_policy(name, rows, values)

    K = len(contestants)
    points_KxK, count_KxK = np.zeros((K, K)), np.zeros((K, K))
    by_game: dict[str, list[list[float]]] = {}
    for game in settings.games:
        scored_KxK = np.full((K, K), np.nan)
        for i in range(K):
            for j in range(i):
                for engine, number in zip(engines, (i, j), strict=True):
                    engine.set_params(contestants[number].params, number)
                label = f"{contestants[i].name}/{contestants[j].name}"
                won, played = evals.meet(first, second, game, settings, label)
                points_KxK[i, j] += won
                points_KxK[j, i] += played - won
                count_KxK[i, j] += played
                count_KxK[j, i] += played
                if played:
                    scored_KxK[i, j], scored_KxK[j, i] = won / played, 1 - won / played
        by_game[game] = scored_KxK.tolist()
    names = [contestant.name for contestant in contestants]
    elo_K = ratings.elo(points_KxK, count_KxK)
    share_KxK = np.divide(points_KxK, count_KxK, out=np.full((K, K), np.nan), where=count_KxK > 0)
    figures["head_to_head"] = {"names": names, "score": share_KxK.tolist(), "by_game": by_game, "elo": elo_K.tolist()}
    _print_matrix(names, share_KxK, elo_K)
    if out:
        chart_path = pathlib.Path(out).with_suffix(".svg")
        with replacing(out) as partial:
            partial.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        with replacing(chart_path) as partial:
            partial.write_text(heat_map(names, share_KxK, "Score of the row against the column"), encoding="utf-8")
        print(f"\nfigures: {out}; heat map: {chart_path}")


def _run_names(workdirs: Sequence[str]) -> list[str]:
    """The workdirs' last parts, or as much of their paths as tells them apart."""
    paths = [pathlib.Path(workdir).resolve() for workdir in workdirs]
    for parts in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    raise UsageError("--workdirs names a workdir twice; name each of them once")


def _snapshots(workdir: str, newest: int, count: int) -> list[tuple[int, pathlib.Path]]:
    """(step, file) of at most `count` snapshots between the start and the newest policy, evenly from first to last."""
    found = sorted((int(p.stem.partition("_")[2]), p) for p in pathlib.Path(workdir, "snapshots").glob("step_*.npz"))
    found = [(step, path) for step, path in found if 0 < step < newest]
    return [found[i] for i in sorted({round(i) for i in np.linspace(0, len(found) - 1, min(len(found), count))})]


def _print_policy(name: str, rows: Sequence[dict[str, Any]], values: dict[str, float]) -> None:
    print(f"\n{name}")
    heads = "".join(f"{outcome:<19}" for outcome in evals.OUTCOMES)
    print(f"{'game':<22}{'opponent':<10}{'seat':<6}{'matches':>7}{'void':>6}  {heads}".rstrip() + " (95 % intervals)")
    for row in rows:
        total = max(row["matches"], 1)
        shares = "".join(
            f"{row[outcome] / total:.2f} [{row[f'{outcome}_low']:.2f}, {row[f'{outcome}_high']:.2f}]  "
            for outcome in evals.OUTCOMES
        )
        counts = f"{row['matches']:>7}{row['void']:>6}"
        print(f"{row['game']:<22}{row['opponent']:<10}{row['seat']!s:<6}{counts}  {shares}".rstrip())
    for tag, value in values.items():
        print(f"{tag.removeprefix('eval/'):<38}{value:>8.3f}")


def _print_matrix(names: Sequence[str], share_KxK: np.ndarray, elo_K: np.ndarray) -> None:
    width = max(map(len, names)) + 2
    print(
        f"\n{'score of row against column':<{max(width, 28)}}"
        + "".join(f"{i:>7}" for i in range(len(names)))
        + "    Elo"
    )
    for i, name in enumerate(names):
        cells = "".join(f"{'':>7}" if np.isnan(share) else f"{share:>7.2f}" for share in share_KxK[i])
        print(f"{f'{i} {name}':<{max(width, 28)}}{cells}{elo_K[i]:>+7.0f}")
