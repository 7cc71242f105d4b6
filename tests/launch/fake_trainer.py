"""Behaves as the trainer does towards a sweep: workdir, lock, checkpoints, signals, exit codes; learns nothing.

Environment: CRASH_SEED is the seed whose run fails; STEP_SECS the duration of a step, which ends at once when the
run is told to stop, unless STUBBORN is set.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import signal
import sys
import time

flags = dict(argument.removeprefix("--").split("=", 1) for argument in sys.argv[1:])
workdir, seed, steps = pathlib.Path(flags["workdir"]), flags["config.run.seed"], int(flags["config.run.steps"])
checkpoints = workdir / "checkpoints"
checkpoints.mkdir(parents=True, exist_ok=True)
asked: list[int] = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
lock = open(workdir / ".lock", "a")  # noqa: SIM115 (until the process ends)
try:
    fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    print("error: the workdir is in use by another run", file=sys.stderr)
    sys.exit(2)
print("gpus", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if seed == os.environ.get("CRASH_SEED"):
    print("error: broken on purpose\x1b[31m", file=sys.stderr)
    print("and a line after it", file=sys.stderr)
    sys.exit(1)
first = max((int(entry.name) for entry in checkpoints.iterdir()), default=0)
try:
    for step in range(first + 1, steps + 1):
        print(f"step {step}", flush=True)
        until = time.monotonic() + float(os.environ.get("STEP_SECS", "0"))
        while time.monotonic() < until and (not asked or "STUBBORN" in os.environ):
            time.sleep(0.01)
        (checkpoints / str(step)).mkdir()
        if asked and step < steps:
            break
except KeyboardInterrupt:
    sys.exit(130)
