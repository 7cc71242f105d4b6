"""What every host does with what all hosts bring: weak scaling of the exchange, the memory and the batch.

    python tests/multihost/host_scaling.py [--processes=1,2,4,8] [--episodes=256] [--programs=16] [--rounds=5]

Each process brings the same share of a step: episodes of 4 turns and 512 tokens, half of them without a hint, and gated
programs of 2 KB. All hosts then hold all of it, so that what one does grows with their number. Times are medians over
the rounds, after one that compiles: wall time of the slowest process, and CPU time of one, which where processes have
to share the cores of one machine is what a host of its own would take.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
PHASES = ("episodes", "programs", "memory", "rows", "placed")
TURNS, HALF = 4, 64  # tokens of a prompt, and of a response
WORKER = "--worker"


def brought(process: int, step: int, episodes: int, programs: int):
    """One process's share of a step: (episodes, records)."""
    from spade_jax import structs

    rng = np.random.default_rng([process, step])

    def turn() -> structs.Turn:
        tokens = rng.integers(0, 4096, (2, HALF)).astype(np.int32)
        logp = rng.normal(-1, 0.1, HALF).astype(np.float32)
        text = "x" * 4 * HALF
        return structs.Turn(text, tokens[0], tokens[1], logp, np.full(HALF, step, np.int32), text, "left", 0.5)

    def episode(index: int) -> structs.Episode:
        arm = (structs.PLAIN, structs.HINTED)[index % 2]
        turns = tuple(turn() for _ in range(TURNS))
        return structs.Episode("e", structs.AGENT, arm, index // 2, index, turns, 0.5, structs.SUCCESS)

    def record(index: int) -> structs.EnvironmentRecord:
        source = f"# {process} {step} {index}\n" + "x = 1  # what programs are made of\n" * 60
        verdicts = tuple(structs.CheckVerdict(f"check {i}", True, "fine") for i in range(10))
        name = hashlib.sha256(source.encode()).hexdigest()
        report = structs.GateReport(verdicts, None, True)
        return structs.EnvironmentRecord(name, source, "Env", skill="search", report=report, hint="Go left.")

    return [episode(index) for index in range(episodes)], [record(index) for index in range(programs)]


def work(args: argparse.Namespace) -> None:
    """One process; the first prints a JSON line."""
    import jax
    from jax.experimental import multihost_utils
    from jax.sharding import NamedSharding, PartitionSpec

    if args.address:
        jax.distributed.initialize(args.address, args.count, args.process)
        jax.config.update("jax_enable_compilation_cache", False)  # as `distributed.join` does, and says why
    from spade_jax import structs
    from spade_jax.designer.memory import Memory
    from spade_jax.learner import batch, partitioning
    from spade_jax.rollout.trajectories import training_set
    from spade_jax.runtime import hosts

    mesh = partitioning.make_mesh(data=-1)
    stacked = partitioning.batch_sharding(mesh, row_axis=1)
    whole = NamedSharding(mesh, PartitionSpec())
    buckets = batch.BucketConfig((256, 512, 1024), 8192 * args.count, row_multiple=partitioning.batch_shards(mesh))
    folder = tempfile.TemporaryDirectory()
    memory = Memory(Path(folder.name) / "environments.sqlite" if hosts.is_first() else ":memory:")
    record = (structs.EnvironmentRecord, structs.GateReport, structs.CheckVerdict)

    def timed(spent: dict[str, tuple[float, float]], name: str, action: Callable[..., Any], *given: Any) -> Any:
        if args.address:
            multihost_utils.sync_global_devices(name)
        wall, cpu = time.perf_counter(), time.process_time()
        result = action(*given)
        spent[name] = (time.perf_counter() - wall, time.process_time() - cpu)
        return result

    def rows(episodes: list[structs.Episode]) -> list[batch.Stack]:
        sequences = training_set([structs.EnvironmentRecord("e", "", "Env")], episodes, [], 1.0, oldest=0)
        (stacks,), _ = batch.pack(sequences, [0.5] * len(sequences), buckets)
        return stacks

    def placed(stacks: list[batch.Stack]) -> Any:
        shardings = [batch.Stack(jax.tree.map(lambda _: stacked, stack.batch), whole) for stack in stacks]
        return jax.block_until_ready(partitioning.global_copies(mesh, stacks, shardings))

    def one_round(step: int) -> tuple[dict[str, tuple[float, float]], dict[str, int]]:
        spent: dict[str, tuple[float, float]] = {}
        mine, written = brought(args.process, step, args.episodes, args.programs)
        shares = timed(spent, "episodes", hosts.gather, mine, structs.Episode, structs.Turn)
        records = timed(spent, "programs", hosts.gather, written, *record)
        timed(spent, "memory", memory.add, step, [record for share in records for record in share])
        stacks = timed(spent, "rows", rows, [episode for share in shares for episode in share])
        timed(spent, "placed", placed, stacks)
        return spent, {"episodes": len(hosts.encode(mine)), "programs": len(hosts.encode(written))}

    one_round(0)
    spent, sent = zip(*(one_round(step) for step in range(1, args.rounds + 1)), strict=True)
    rounds = hosts.gather([[list(one[phase]) for phase in PHASES] for one in spent])
    digests = hosts.gather(memory.digest())
    memory.close()
    if hosts.is_first():
        seconds = np.array(rounds)  # [process, round, phase, (wall, CPU)]
        figures = {
            phase: {
                "wall_ms": 1e3 * float(np.median(seconds[:, :, i, 0].max(0))),
                "cpu_ms": 1e3 * float(np.median(seconds[:, :, i, 1])),
            }
            for i, phase in enumerate(PHASES)
        }
        print(json.dumps({"sent": sent[-1], "figures": figures, "same_memory": len(set(digests)) == 1}))


def measure(count: int, args: argparse.Namespace) -> dict:
    """Runs `count` processes of one CPU device; what the first one says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    shares = [f"--episodes={args.episodes}", f"--programs={args.programs}", f"--rounds={args.rounds}"]
    environ = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    join = [f"--address={address}"] if count > 1 else []
    children = [
        subprocess.Popen(
            [sys.executable, __file__, WORKER, f"--count={count}", f"--process={i}", *join, *shares],
            env=environ, stdout=subprocess.PIPE if i == 0 else subprocess.DEVNULL, text=True,
        )
        for i in range(count)
    ]  # fmt: skip
    try:
        said, _ = children[0].communicate(timeout=args.timeout)
        codes = [child.wait(timeout=60) for child in children]
    finally:
        for child in children:
            child.kill()
    if any(codes):
        sys.exit(f"error: {count} processes ended with {codes}")
    return json.loads(said.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2,4,8", help="how many, one after the other")
    parser.add_argument("--episodes", type=int, default=256, help="that a process brings")
    parser.add_argument("--programs", type=int, default=16, help="that a process brings")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=600.0)
    for hidden, kind in ((WORKER, None), ("--address", str), ("--count", int), ("--process", int)):
        how = {"action": "store_true"} if kind is None else {"type": kind, "default": kind()}
        parser.add_argument(hidden, help=argparse.SUPPRESS, **how)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    print("ms, wall of the slowest / CPU of one".ljust(40) + "".join(phase.rjust(18) for phase in PHASES))
    for count in map(int, args.processes.split(",")):
        found = measure(count, args)
        cells = (f"{figure['wall_ms']:.0f} / {figure['cpu_ms']:.0f}" for figure in found["figures"].values())
        sent = " + ".join(f"{size / 1e6:.2f}" for size in found["sent"].values())
        head = f"{count} processes, each sends {sent} MB"
        print(head.ljust(40) + "".join(cell.rjust(18) for cell in cells), flush=True)
        assert found["same_memory"], "the hosts' memories differ"


if __name__ == "__main__":
    main()
