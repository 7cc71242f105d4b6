"""Measures trained policies against their start.

    python -m spade_jax.evaluate --config=configs/spade_tiny.py --workdirs=runs/s0,runs/s1,runs/s2
    python -m spade_jax.evaluate --config=configs/spiral_tiny.py --workdirs=runs/spiral --suite=games

The suite `probe` holds environments that nothing is ever trained on, `games` the two-player games.
In both, every run's newest policy and the common initial one play the same instances
with the same sampling keys.

The probe's table gives win rates, and their gain over the start with a bootstrap
interval over runs (seeds) and instances. Void plays count for nothing; the last column
is their share. The games' tables give every policy against opponents by seat, with
Wilson intervals, and against the truth; then the policies against each other, with Elo
ratings. Snapshots of the runs take part. With --out the matrix comes as a heat map, too.
"""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from spade_jax import compose
from spade_jax.arena import games_suite
from spade_jax.envs.bundled import SUITES
from spade_jax.evals.probe import compare, play_probe
from spade_jax.learner import state as state_lib
from spade_jax.rollout.measure import mean_or_nan, wins
from spade_jax.runtime import app, checks, compile_cache
from spade_jax.runtime.checkpoint import Checkpointer, checkpoint_path
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.files import replacing
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import checkpoint_folder, compare_evaluation

_CONFIG = config_flags.DEFINE_config_file("config", None, "The configuration that the runs were made with.")
_WORKDIRS = flags.DEFINE_list("workdirs", None, "Workdirs of runs of one config that differ in their seed.")
_INSTANCES = flags.DEFINE_integer("instances", 16, "Probe instances per family and difficulty range.", lower_bound=1)
_SUITE = flags.DEFINE_enum(
    "suite", "probe", ["probe", "games"], "probe: held-out environments; games: two-player games and head to head."
)
_SNAPSHOTS = flags.DEFINE_integer(
    "snapshots", 6, "Snapshots that take part in the suite games, of all runs together at most.", lower_bound=0
)
_OUT = flags.DEFINE_string("out", None, "JSON file that receives the figures, where given.")


def main(argv: Sequence[str]) -> None:
    del argv
    config = resolve_preset(_CONFIG.value)
    checks.check_config(config)
    if not _WORKDIRS.value:
        raise UsageError("--workdirs is empty; name the workdirs of one run or more")
    if config.policy.init == "scratch":
        raise UsageError(
            "policy.init=scratch starts every seed from other weights, so runs have no common start to be measured "
            "against; evaluate runs that began with stored weights"
        )
    if _OUT.value:  # now, not when the measuring is over
        folder = pathlib.Path(_OUT.value).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"--out={_OUT.value} is in no folder that exists; make the folder first")
        if pathlib.Path(_OUT.value).is_dir() or not os.access(folder, os.W_OK):
            raise UsageError(f"--out={_OUT.value} cannot be written; name a file in a folder that you can write to")
        if _SUITE.value == "games" and _OUT.value.endswith(".svg"):
            raise UsageError(f"--out={_OUT.value} is where the chart beside the figures goes; name a .json file")
    for workdir in _WORKDIRS.value:
        if not checkpoint_path(checkpoint_folder(workdir)).is_dir():
            raise UsageError(f"--workdirs: {workdir} holds no checkpoints; name the workdir of a run")
        for difference in compare_evaluation(workdir, config):
            print(f"{workdir}: config changed: {difference}", flush=True)
    if _SUITE.value == "games":
        games_suite(config, _WORKDIRS.value, _OUT.value, snapshots=_SNAPSHOTS.value)
    else:
        probe_suite(config, _WORKDIRS.value, _INSTANCES.value, _OUT.value)


def probe_suite(config: ConfigDict, workdirs: Sequence[str], instances: int, out: str | None) -> None:
    """Prints the win rates of start and runs on the held-out probe, and the gain."""
    with compose.sandbox_failures(), compose.sandbox_pool(config) as pool:
        template = compose.chat_template(config)
        compile_cache.enable_compile_cache(config.compile_cache.dir)
        model, initial_params = compose.policy(config, template)
        mesh = compose.mesh(config, model)
        optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
        state = compose.train_state(config, model, optimizer, mesh, initial_params)
        engine = compose.engine(config, model, state.params, template, mesh)
        probe, settings = compose.probe(config, instances), compose.probe_settings(config)

        def play(params: Any, version: int) -> np.ndarray:
            """float64[N] outcome of every probe instance, NaN where void."""
            engine.set_params(params, version)
            return wins(play_probe(engine, pool, template, probe, settings, label="evaluate"))

        start_N = play(state.params, 0)
        runs = []
        for workdir in workdirs:
            with Checkpointer(checkpoint_folder(workdir), keep=1, read_only=True) as checkpointer:
                restored = checkpointer.restore(state)
            if restored is None:
                raise UsageError(f"--workdirs: {workdir} holds no complete checkpoint; let the run save one")
            runs.append(play(restored.state.params, restored.step))
            print(f"{workdir} (step {restored.step}): {mean_or_nan(runs[-1]):.3f}", flush=True)

    tasks = {"all": np.ones(len(probe), bool)}
    tasks |= {suite: np.array([bundled.suite == suite for bundled in probe]) for suite in SUITES}
    for suite in SUITES:
        for name in sorted({bundled.family.name for bundled in probe if bundled.suite == suite}):
            tasks[f"{suite}/{name}"] = np.array([(b.suite, b.family.name) == (suite, name) for b in probe])
    figures = {name: compare(start_N[chosen], np.stack(runs)[:, chosen]) for name, chosen in tasks.items()}
    print(f"{'task':<28}{'start':>8}{'trained':>9}{'gain':>8}   95 % interval    void")
    for name, row in figures.items():
        low, high = row["interval"]
        print(
            f"{name:<28}{row['start']:>8.3f}{row['trained']:>9.3f}{row['gain']:>+8.3f}   [{low:+.3f}, {high:+.3f}]"
            f"{row['void']:>8.3f}"
        )
    if out:
        with replacing(out) as partial:
            partial.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


def run() -> None:
    flags.mark_flags_as_required(["config", "workdirs"])
    app.run(main)


if __name__ == "__main__":
    run()
