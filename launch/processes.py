"""Runs of a sweep as local processes, N at a time; ends with them, and they with it."""

from __future__ import annotations

import ctypes
import glob
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple, TextIO

from spade_jax.runtime import sweeps
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.workdir import WorkdirLock

_POLL_SECS = 0.2
_PR_SET_PDEATHSIG = 1
# What the first, second and third Ctrl-C send on: stop after the step with a checkpoint; at once; without asking.
_ESCALATION = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
_NOTICE = (
    "stopping every run after its step, with a checkpoint; Ctrl-C again ends them at once",
    "ending every run; what is lost is the work since its last checkpoint",
    "killing every run",
)


class _Live(NamedTuple):
    run: sweeps.SweepRun
    process: subprocess.Popen
    log: TextIO
    started: float


class _Requests:
    """Counts the requests to stop while it is entered; main thread only."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> _Requests:
        self._previous = {n: signal.signal(n, self._handle) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *unused: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


def run_all(
    root: Path,
    runs: Sequence[sweeps.SweepRun],
    command: Callable[[sweeps.SweepRun], list[str]],
    *,
    parallel: int,
    gpus: Sequence[str] = (),
) -> bool:
    """Runs all of `runs`, in order, at most `parallel` at once; says of each how it starts and ends.

    Args:
      root: the sweep's folder.
      runs: what is left to do.
      command: what starts a run.
      parallel: processes at once.
      gpus: CUDA_VISIBLE_DEVICES of each of the `parallel` places; (): left as it is.

    Returns:
      Whether it was told to stop before the end.
    """
    waiting, live, sent, said_held = list(runs), {}, 0, False
    with _Requests() as requests:
        while live or (waiting and not requests.count):
            for place in range(parallel):
                if place in live or requests.count:
                    continue
                # A process of a sweep that was killed may still be busy with its last step.
                free = next((run for run in waiting if _is_free(root / run.name)), None)
                if free is not None:
                    waiting.remove(free)
                    live[place] = _start(root, free, command(free), gpus[place] if gpus else None)
            if waiting and not live and not said_held and not requests.count:
                print(f"waiting for an earlier process that still holds {root / waiting[0].name}", flush=True)
                said_held = True
            time.sleep(_POLL_SECS)
            while sent < min(requests.count, len(_ESCALATION)):
                print(f"\n{_NOTICE[sent]}", flush=True)
                for one in live.values():
                    one.process.send_signal(_ESCALATION[sent])
                sent += 1
            for place, one in list(live.items()):
                if one.process.poll() is not None:
                    del live[place]
                    _end(root, one, asked_to_stop=requests.count > 0)
        return requests.count > 0


def _is_free(workdir: Path) -> bool:
    try:
        WorkdirLock(workdir).release()
    except UsageError:
        if not workdir.is_dir():
            raise
        return False
    return True


def _start(root: Path, run: sweeps.SweepRun, command: list[str], gpus: str | None) -> _Live:
    sweeps.forget_exit(root, run)
    log = open(root / run.name / sweeps.LOG_FILE, "a", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ if gpus is None else os.environ | {"CUDA_VISIBLE_DEVICES": gpus},
            # A terminal's Ctrl-C would reach it twice, and the second one means "at once".
            start_new_session=True,
            preexec_fn=_end_with_parent,
        )
    except OSError as error:
        log.close()
        raise UsageError(f"--trainer: {command[0]} cannot be started ({error.strerror}); name a command") from error
    print(f"{run.name}: started, log in {root / run.name / sweeps.LOG_FILE}", flush=True)
    return _Live(run, process, log, time.monotonic())


def _end_with_parent() -> None:
    """In the child: a sweep that is killed takes its runs with it, each after its step and a checkpoint."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(root: Path, one: _Live, *, asked_to_stop: bool) -> None:
    one.log.close()
    outcome = sweeps.record_exit(root, one.run, one.process.returncode, asked_to_stop=asked_to_stop)
    seconds = time.monotonic() - one.started
    reason = f": {outcome.reason}" if outcome.reason else ""
    print(f"{one.run.name}: {outcome.status} after {seconds:.0f} s{reason}", flush=True)


def share_gpus(parallel: int, gpus_per_run: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each place, from those that this process may use.

    Raises:
      UsageError: there are fewer than `parallel` times `gpus_per_run`.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        visible = [str(i) for i in range(len(glob.glob("/dev/nvidia[0-9]*")))]
    else:
        visible = [name for name in named.split(",") if name]
    if len(visible) < parallel * gpus_per_run:
        raise UsageError(
            f"--parallel={parallel} with --gpus_per_run={gpus_per_run} needs {parallel * gpus_per_run} GPUs, but "
            f"{len(visible)} can be seen; lower either"
        )
    return [",".join(visible[i * gpus_per_run : (i + 1) * gpus_per_run]) for i in range(parallel)]
