"""Runs a sweep: the same experiment under several settings, here or as a Slurm array.

    python -m launch.sweep --sweep=configs/sweeps/seeds.py --config=configs/spade_tiny.py --workdir=ROOT

Every run gets a workdir and a log of its own below ROOT. Given again, the command skips what is done, goes on with
what was stopped, and lists what failed; `--retry_failed` runs that again as well. `--config.key=value` holds for all
runs. Nothing starts unless every run's config is accepted.

    --parallel=4 --gpus_per_run=2         four at a time, each on two GPUs of its own
    --dry_run                             prints what would run
    --slurm=FILE                          writes a Slurm array of what is left, to be given to sbatch
    --trainer="bash launch/local.sh"      another command than `python -m spade_jax.train`
"""

from __future__ import annotations

import difflib
import hashlib
import runpy
import shlex
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, config_flags

from launch import hyper, processes
from spade_jax.reporting.sweep_page import SWEEP_REPORT_FILE, write_sweep_report
from spade_jax.runtime import app, checks, sweeps
from spade_jax.runtime.errors import RunError, UsageError
from spade_jax.runtime.presets import get_key, resolve_preset, set_key
from spade_jax.runtime.shutdown import EXIT_INTERRUPTED
from spade_jax.runtime.workdir import WorkdirLock, compare_config, flatten

ROOT = Path(__file__).resolve().parents[1]
_NAME_CHARS = 100


def main(argv: list[str]) -> int | None:
    del argv
    given = flags.FLAGS
    config_flag, root = given["config"], Path(given.workdir).absolute()
    common = config_flags.get_override_values(config_flag)
    runs = plan(given.sweep, given.config, common, root)

    def command(run: sweeps.SweepRun) -> list[str]:
        start = shlex.split(given.trainer) if given.trainer else [sys.executable, "-m", "spade_jax.train"]
        settings = [as_flag(key, value) for key, value in (common | run.settings).items()]
        return [*start, f"--config={config_flag.config_filename}", f"--workdir={root / run.name}", *settings]

    if given.task is not None:
        if not 0 <= given.task < len(runs):
            raise UsageError(f"--task={given.task} is not among the {len(runs)} runs of --sweep={given.sweep}")
        if [run.name for run in sweeps.read_sweep(root)] != [run.name for run in runs]:
            raise UsageError(f"--sweep={given.sweep} has changed since the array was written; write it again")
        left = [runs[given.task]] if sweeps.outcome(root, runs[given.task]).status != "done" else []
        if processes.run_all(root, left, command, parallel=1):
            return EXIT_INTERRUPTED
        return _verdict(root, [runs[given.task]])

    passed_over = ("done",) if given.retry_failed else ("done", "failed")
    left = [run for run in runs if sweeps.outcome(root, run).status not in passed_over]
    if given.dry_run:
        for run in runs:
            print(f"# {run.name}: {_said(root, run)}{'' if run in left else ', skipped'}")
            if run in left:
                print(shlex.join(command(run)))
        return None
    with WorkdirLock(root):
        sweeps.write_sweep(root, runs)
        if given.slurm:
            return _write_array(given.slurm, root, runs, left, given.parallel, common)
        gpus = processes.share_gpus(given.parallel, given.gpus_per_run) if given.gpus_per_run else ()
        stopped = processes.run_all(root, left, command, parallel=given.parallel, gpus=gpus)
    print()
    for run in runs:
        print(f"{run.name}: {_said(root, run)}")
    print(f"comparison: {write_sweep_report(root, root / SWEEP_REPORT_FILE)}")
    print(f"curves and hparams: tensorboard --logdir {root}")
    if stopped:
        print("stopped; the same command goes on")
        return EXIT_INTERRUPTED
    return _verdict(root, runs)


def _said(root: Path, run: sweeps.SweepRun) -> str:
    outcome = sweeps.outcome(root, run)
    return f"{outcome.status} ({outcome.reason})" if outcome.reason else outcome.status


def _verdict(root: Path, runs: Sequence[sweeps.SweepRun]) -> None:
    """Ends with an error if a run failed."""
    failed = [run.name for run in runs if sweeps.outcome(root, run).status == "failed"]
    if failed:
        raise RunError(
            f"{len(failed)} of {len(runs)} runs failed: {', '.join(failed)}; see {sweeps.LOG_FILE} in their workdirs, "
            "then give the same command with --retry_failed"
        )


# ---------------------------------------------------------------------------
# From the sweep's file to runs
# ---------------------------------------------------------------------------


def plan(path: str, config: ConfigDict, common: dict[str, Any], root: Path) -> list[sweeps.SweepRun]:
    """The runs of a sweep, each with a config that was checked.

    Every run sets every key that any of them sets, to what it would be anyhow if need be, so that tables of the
    runs have no holes.

    Args:
      path: the sweep's file.
      config: the experiment's, with `common` in it.
      common: {key: value} given on the command line for all runs.
      root: the sweep's folder, whose workdirs must hold runs of these configs.

    Raises:
      UsageError: the file cannot be loaded, a run's config cannot work, or two runs are the same.
    """
    points = _points(path)
    keys = list(dict.fromkeys(key for point in points for key in point))
    for key in keys:
        if key in common:
            raise UsageError(f"--config.{key} is also set by --sweep={path}; give it in one place")
    resolved = [_configured(path, config, point) for point in points]
    settings = [{key: get_key(one, key) for key in keys} for one in resolved]
    # What a point leaves alone may be what another one sets.
    for i, one in enumerate(settings):
        if one in settings[:i]:
            raise UsageError(
                f"--sweep={path}: {points[settings.index(one)]} and {points[i]} are the same run; drop one"
            )
    # A key of a single run tells it from what would be there without the sweep.
    same = [key for key in keys if len(points) > 1 and all(key in p and p[key] == points[0][key] for p in points)]
    varied = [[key for key in point if key not in same] for point in points]
    names = _names(points, varied)
    for name, one in zip(names, resolved, strict=True):
        compare_config(root / name, one)
    return [sweeps.SweepRun(*run, one.run.steps) for *run, one in zip(names, varied, settings, resolved, strict=True)]


def _points(path: str) -> list[hyper.Point]:
    try:
        points = runpy.run_path(path)["get_hyper"](hyper)
    except FileNotFoundError as error:
        raise UsageError(f"--sweep={path} does not exist; give a file such as configs/sweeps/seeds.py") from error
    except KeyError as error:
        raise UsageError(f"--sweep={path} has no {error.args[0]}; write get_hyper(h) that returns points") from error
    except Exception as error:  # noqa: BLE001 (whatever a sweep's file does is its author's to read)
        raise UsageError(f"--sweep={path} cannot be loaded: {error}") from error
    if not isinstance(points, list) or not points or not all(isinstance(point, dict) for point in points):
        raise UsageError(f"--sweep={path}: get_hyper returned no list of points; build one of h.product, h.sweep, ...")
    return points


def _configured(path: str, config: ConfigDict, point: hyper.Point) -> ConfigDict:
    """The config of one point, resolved and checked."""
    one = config.copy_and_resolve_references()
    for key, value in point.items():
        known = flatten(config.to_dict())
        if key not in known:
            close = difflib.get_close_matches(key, known, 1)
            remedy = f"did you mean {close[0]}?" if close else "see configs/base.py"
            raise UsageError(f"--sweep={path} sets {key}, which is not a key of the config; {remedy}")
        try:
            set_key(one, key, value)
        except (TypeError, ValueError) as error:
            raise UsageError(f"--sweep={path}: {key}={value!r} is not of this key's type ({error})") from error
    try:
        resolved = resolve_preset(one)
        checks.check_config(resolved)
        if resolved.checkpoint.dir:
            raise UsageError(
                f"checkpoint.dir={resolved.checkpoint.dir}, but the runs of a sweep have their checkpoints in their "
                "workdirs; leave it out"
            )
    except UsageError as error:
        raise UsageError(f"--sweep={path}: the run of {point} cannot work: {error}") from error
    return resolved


def _names(points: Sequence[hyper.Point], varied: Sequence[Sequence[str]]) -> list[str]:
    """A folder name per run, of what it varies; it says nothing of the run's place in the sweep."""
    tails = Counter(key.rpartition(".")[2] for key in {key for keys in varied for key in keys})
    names = []
    for point, keys in zip(points, varied, strict=True):
        parts = []
        for key in keys:
            tail = key.rpartition(".")[2]
            value = point[key]
            shown = "+".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            parts.append(f"{tail if tails[tail] == 1 else key}={shown}")
        name = "_".join(parts) or "baseline"  # of the point {}
        names.append("".join(c if c.isalnum() or c in "=_.+-" else "-" for c in name))
    alike = Counter(names)
    for i, (name, point) in enumerate(zip(names, points, strict=True)):
        if len(name) > _NAME_CHARS or alike[name] > 1:  # values that differ only in what a folder's name cannot show
            names[i] = f"{name[: _NAME_CHARS - 9]}-{hashlib.sha256(repr(point).encode()).hexdigest()[:8]}"
    return names


def as_flag(key: str, value: Any) -> str:
    """The command line's way to set a key."""
    if isinstance(value, bool):
        return f"--config.{key}={str(value).lower()}"
    return f"--config.{key}={tuple(value) if isinstance(value, (list, tuple)) else value}"


# ---------------------------------------------------------------------------
# Slurm
# ---------------------------------------------------------------------------

_ARRAY = """#!/usr/bin/env bash
# The runs that are left of {root}. Resources are given to sbatch:
#   sbatch --time=12:00:00 --gpus=1 --cpus-per-task=16 --mem=64G {file}
#SBATCH --job-name={name}
#SBATCH --array={indices}%{parallel}
#SBATCH --output={root}/slurm-%a.txt
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:TERM@180
set -euo pipefail
cd {checkout}
exec {command} --task="$SLURM_ARRAY_TASK_ID"
"""


def _write_array(
    file: str,
    root: Path,
    runs: Sequence[sweeps.SweepRun],
    left: Sequence[sweeps.SweepRun],
    parallel: int,
    common: dict[str, Any],
) -> None:
    if not left:
        print("every run is done or has failed; there is nothing to submit")
        return
    given = flags.FLAGS
    command = [
        sys.executable,
        *("-m", "launch.sweep"),
        f"--sweep={Path(given.sweep).absolute()}",
        f"--config={_absolute(given['config'].config_filename)}",
        f"--workdir={root}",
        *([f"--trainer={given.trainer}"] if given.trainer else []),
        *(as_flag(key, value) for key, value in common.items()),
    ]
    script = _ARRAY.format(
        root=root,
        file=file,
        name=root.name,
        indices=",".join(str(i) for i, run in enumerate(runs) if run in left),
        parallel=parallel,
        checkout=shlex.quote(str(ROOT)),
        command=shlex.join(command),
    )
    try:
        Path(file).write_text(script, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--slurm={file} cannot be written ({error.strerror}); name another file") from error
    print(f"wrote {file} for {len(left)} runs; submit it with: sbatch --time=... --gpus=... {file}")


def _absolute(config: str) -> str:
    """A config's path, with its variants, seen from anywhere."""
    file, colon, words = config.partition(":")
    return f"{Path(file).absolute()}{colon}{words}"


def run() -> None:
    config_flags.DEFINE_config_file("config", None, "The configuration, e.g. configs/spade_tiny.py.")
    flags.DEFINE_string("sweep", None, "The sweep, e.g. configs/sweeps/seeds.py.")
    flags.DEFINE_string("workdir", None, "Folder of the sweep; every run's workdir is below it.")
    flags.DEFINE_integer("parallel", 1, "Runs at a time.", lower_bound=1)
    flags.DEFINE_integer("gpus_per_run", 0, "GPUs that each run has to itself; 0: all see all.", lower_bound=0)
    flags.DEFINE_boolean("dry_run", False, "Print what would run, and do nothing.")
    flags.DEFINE_boolean("retry_failed", False, "Run again what failed.")
    flags.DEFINE_string("slurm", None, "Write a Slurm array to this file instead of running.")
    flags.DEFINE_string("trainer", None, "Command that starts a run, to which its flags are appended.")
    flags.DEFINE_integer("task", None, "Run only the run of this number, as a task of a Slurm array does.")
    flags.mark_flags_as_required(["config", "sweep", "workdir"])
    app.run(main)


if __name__ == "__main__":
    run()
