"""Whole training runs on many processes, and what must be equal among them.

    python tests/multihost/trainer_runs.py table --out=DIR [--algorithm=spade] [1x1 1x8 2x4 4x2]
    python tests/multihost/trainer_runs.py kills --out=DIR [--algorithm=spade] [2x2 1x4]

`table` runs the trainer from one seed as P processes of D CPU devices each, and compares losses, memory and baselines.
`kills` kills a process of the first shape while it samples, updates and saves a checkpoint, starts all again in each
of the shapes, and compares the end with that of a run that nobody disturbed. DIR has to be new.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("trainer_worker.py")
TOLERANCE = 1e-5
STEPS = 2

# What `:runlocal` does, smaller, with a checkpoint after every step.
SMALL = {
    "spade": (
        "--config.rollout.seeds=3", "--config.rollout.min_pairs=2", "--config.evaluation.every_steps=0",
        "--config.sampler.slots=16",
    ),
    "spiral": (
        "--config.selfplay.opponent=self", "--config.evaluation.every_steps=0", "--config.selfplay.matches=8",
        "--config.sampler.slots=8",
    ),
}  # fmt: skip


def start(
    out: Path, processes: int, devices: int, *, algorithm: str, kill: str = "-", extra: Sequence[str] = ()
) -> list[subprocess.Popen]:
    """Starts a run in `out`/work; its processes write `out`/held.I and `out`/log.I."""
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": path}
    command = [
        sys.executable, str(WORKER), str(out / "held"), kill,
        f"--config={ROOT}/configs/{algorithm}_tiny.py:runlocal", f"--workdir={out / 'work'}",
        f"--config.run.steps={STEPS}", "--config.checkpoint.save_steps=1", *SMALL[algorithm], *extra,
    ]  # fmt: skip
    children = []
    for i in range(processes):
        join = [f"--coordinator=127.0.0.1:{port}", f"--num_processes={processes}", f"--process_id={i}"]
        with open(out / f"log.{i}", "a", encoding="utf-8") as log:
            children.append(
                subprocess.Popen(
                    command + (join if processes > 1 else []), env=environ, stdout=log, stderr=subprocess.STDOUT
                )
            )
    return children


def finish(children: Sequence[subprocess.Popen], timeout: float) -> list[int]:
    """Exit codes; nobody outlives this."""
    deadline = time.monotonic() + timeout
    try:
        return [child.wait(max(0.0, deadline - time.monotonic())) for child in children]
    finally:
        for child in children:
            child.kill()


def held(out: Path) -> list[list[dict]]:
    """Of each process, what it held at the end of each step; of a step that was done twice, the second time."""
    found = []
    for path in sorted(out.glob("held.*")):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        found.append([line for _, line in sorted({line["step"]: line for line in lines}.items())])
    return found


def run(out: Path, processes: int, devices: int, *, algorithm: str, timeout: float) -> list[list[dict]]:
    """A run from begin to end; what `held` says.

    Raises:
      RuntimeError: it failed; its last words are in the message.
    """
    codes = finish(start(out, processes, devices, algorithm=algorithm), timeout)
    if any(codes):
        raise RuntimeError(f"exit codes {codes}: {(out / 'log.0').read_text(encoding='utf-8')[-2000:]}")
    return held(out)


def same_on_all_hosts(processes: Sequence[Sequence[dict]]) -> bool:
    """Whether all processes of a run held the same memory, host state, baselines and metrics after each step."""
    return all(json.dumps(steps) == json.dumps(processes[0]) for steps in processes)


def largest_difference(a: Sequence[dict], b: Sequence[dict], tags: Sequence[str] = ("learner/loss",)) -> float:
    """Between two runs, over steps and tags, relative where the values are larger than 1."""
    pairs = [(x["scalars"][tag], y["scalars"][tag]) for x, y in zip(a, b, strict=True) for tag in tags]
    return max(abs(x - y) / max(1.0, abs(x)) for x, y in pairs)


def table(out: Path, shapes: Sequence[str], algorithm: str, timeout: float) -> bool:
    """Prints a row for each shape; whether all agree with the first."""
    print(f"{'shape':<8}{'losses':<34}{'difference':>11}{'baselines':>11}  memory as the first / on all hosts")
    first, fine = None, True
    for shape in shapes:
        processes, devices = map(int, shape.split("x"))
        found = run(out / shape, processes, devices, algorithm=algorithm, timeout=timeout)
        first = first or found[0]
        losses = " ".join(f"{line['scalars']['learner/loss']:+.7f}" for line in found[0])
        difference = largest_difference(first, found[0], ("learner/loss", "learner/grad_norm"))
        baselines = float(np.max(np.abs(np.subtract(first[-1]["baselines"], found[0][-1]["baselines"]))))
        memory, hosts = found[0][-1]["memory"] == first[-1]["memory"], same_on_all_hosts(found)
        print(f"{shape:<8}{losses:<34}{difference:>11.1e}{baselines:>11.1e}  {memory} / {hosts}", flush=True)
        fine &= difference <= TOLERANCE and baselines <= TOLERANCE and memory and hosts
    return fine


def kills(out: Path, shapes: Sequence[str], algorithm: str, timeout: float) -> bool:
    """Prints a row for each moment and shape; whether every run ended as the undisturbed one did."""
    whole = [int(part) for part in shapes[0].split("x")]
    expected, fine = run(out / "undisturbed", *whole, algorithm=algorithm, timeout=timeout)[0], True
    print("killed in     exit codes    again as  ends in the same bits  largest difference", flush=True)
    for phase in ("play", "update", "checkpoint"):
        for shape in shapes:
            again, kill = out / f"{phase}-{shape}", f"1:{phase}:{0 if phase == 'checkpoint' else 1}"
            codes = finish(start(again, *whole, algorithm=algorithm, kill=kill), timeout)
            processes, devices = map(int, shape.split("x"))
            found = run(again, processes, devices, algorithm=algorithm, timeout=timeout)[0]
            same = json.dumps(found[-1]) == json.dumps(expected[-1])
            difference = largest_difference(expected[-1:], found[-1:], ("learner/loss", "learner/grad_norm"))
            print(f"{phase:<14}{codes!s:<14}{shape:<10}{same!s:<23}{difference:.1e}", flush=True)
            fine &= all(codes) and difference <= TOLERANCE and (same or shape != shapes[0])
            fine &= found[-1]["memory"] == expected[-1]["memory"]
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("table", "kills"))
    parser.add_argument("shapes", nargs="*")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--algorithm", choices=sorted(SMALL), default="spade")
    parser.add_argument("--timeout", type=float, default=1800.0)
    args = parser.parse_intermixed_args()
    if args.what == "table":
        fine = table(args.out, args.shapes or ("1x1", "1x8", "2x4", "4x2"), args.algorithm, args.timeout)
    else:
        fine = kills(args.out, args.shapes or ("2x2", "1x4"), args.algorithm, args.timeout)
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
