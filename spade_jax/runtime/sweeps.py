"""A sweep's folder: which runs it has, with what settings, and what became of each.

ROOT/sweep.json           the runs: name, settings, steps
ROOT/<name>/              the workdir of one
ROOT/<name>/log.txt       what its processes printed
ROOT/<name>/outcome.json  how the last of them ended
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.files import replacing
from spade_jax.runtime.shutdown import EXIT_INTERRUPTED

SWEEP_FILE = "sweep.json"
LOG_FILE = "log.txt"
_OUTCOME_FILE = "outcome.json"
_REASON_CHARS = 300

# done: it ended by itself after its last step; stopped: asked to, or cut off, so that it can go on;
# waiting: never started.
Status = Literal["done", "failed", "stopped", "waiting"]


@dataclasses.dataclass(frozen=True)
class SweepRun:
    """One run of a sweep.

    Attributes:
      name: of its workdir, below the sweep's folder.
      varied: the keys that tell it from the others, as its name shows them.
      settings: {config key: value} of every key that the sweep sets; the same keys in every run.
      steps: updates after which it is complete.
    """

    name: str
    varied: Sequence[str]
    settings: dict[str, Any]
    steps: int


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a run.

    Attributes:
      status: see Status.
      reason: why it failed, or how far it got.
    """

    status: Status
    reason: str = ""


def write_sweep(root: str | os.PathLike[str], runs: Sequence[SweepRun]) -> None:
    """Makes `runs` the sweep that the folder holds; whole or not at all."""
    content = {"runs": [dataclasses.asdict(run) for run in runs]}
    with replacing(Path(root) / SWEEP_FILE) as partial:
        partial.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def read_sweep(root: str | os.PathLike[str]) -> list[SweepRun]:
    """The runs of a sweep's folder, in the order of the sweep.

    Raises:
      UsageError: the folder is not one of a sweep, or its file is damaged.
    """
    path = Path(root) / SWEEP_FILE
    try:
        return [SweepRun(**run) for run in json.loads(path.read_text(encoding="utf-8"))["runs"]]
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UsageError(
            f"{root} holds no sweep (it has no {SWEEP_FILE}); give the folder that launch.sweep wrote"
        ) from error
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}); remove it and give the sweep's command again, which skips what is done"
        ) from error


def record_exit(root: str | os.PathLike[str], run: SweepRun, code: int, *, asked_to_stop: bool) -> Outcome:
    """Writes down how a run's process ended.

    Args:
      root: the sweep's folder.
      run: the run.
      code: of the process; -N for signal N, as `subprocess` has it.
      asked_to_stop: whether the sweep itself had told it to.
    """
    workdir = Path(root) / run.name
    stopped = code in (EXIT_INTERRUPTED, -signal.SIGTERM, -signal.SIGINT) or (asked_to_stop and code != 0)
    reason = ""
    if code and not stopped:
        how = f"exit code {code}"
        if code < 0:
            how = f"killed by {signal.Signals(-code).name}" + (
                ", for want of memory?" if code == -signal.SIGKILL else ""
            )
        reason = ": ".join(filter(None, (how, _last_words(workdir / LOG_FILE))))
    record = {"exit": "stopped" if stopped else code, "reason": reason}
    (workdir / _OUTCOME_FILE).write_text(json.dumps(record) + "\n", encoding="utf-8")
    return outcome(root, run)


def forget_exit(root: str | os.PathLike[str], run: SweepRun) -> None:
    """Called when a process of the run starts: should nobody see it end, then it was cut off."""
    (Path(root) / run.name / _OUTCOME_FILE).unlink(missing_ok=True)


def outcome(root: str | os.PathLike[str], run: SweepRun) -> Outcome:
    """What became of a run so far."""
    workdir = Path(root) / run.name
    try:
        record = json.loads((workdir / _OUTCOME_FILE).read_text(encoding="utf-8"))
        code, reason = record["exit"], record["reason"]
    except (OSError, ValueError, TypeError, KeyError):  # half-written by a process that was killed: as good as none
        code, reason = "unknown", ""
    if reason:
        return Outcome("failed", reason)
    steps = _newest_checkpoint(workdir)
    # A trainer that is told to stop exits with 0 as well, hence the look at its checkpoints.
    if code == 0 and steps >= run.steps:
        return Outcome("done")
    if not steps and not (workdir / LOG_FILE).exists():
        return Outcome("waiting")
    return Outcome("stopped", f"{steps} of {run.steps} steps are in a checkpoint")


def _newest_checkpoint(workdir: Path) -> int:
    """Updates in the newest complete checkpoint of a workdir, 0 without one."""
    folder = workdir / "checkpoints"
    if not folder.is_dir():
        return 0
    return max((int(entry.name) for entry in folder.iterdir() if entry.name.isdigit()), default=0)


def _last_words(path: Path) -> str:
    """The last line of a log that says what is wrong: that of a binary's own error, else the very last one."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - 20_000))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    said = [line for line in lines if line.startswith("error: ")] or [line for line in lines if line.strip()]
    # A program's text may be in it, and goes to a terminal.
    return "".join(c if c.isprintable() else " " for c in said[-1]).strip()[:_REASON_CHARS] if said else ""
