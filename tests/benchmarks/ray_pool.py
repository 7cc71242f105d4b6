"""What a Ray cluster between trainer and environments costs: `python tests/benchmarks/ray_pool.py [--json=FILE]`.

The pool on one Ray node of this machine (extra [ray]) against the local pool, by turns. Both run the programs on the
same cores, so that the difference is what the messages cost; a real cluster has cores of its own for them. The CPU time
is the trainer's process alone, which is what an accelerator's host spends. No JAX.
"""

from __future__ import annotations

import functools
import os
import statistics
import time
from collections.abc import Callable

import harness
import pool as local_pool

from spade_jax.sandbox import Limits, Pool
from spade_jax.sandbox.ray_pool import RayPool

STORE = 80 * 2**20  # bytes


def compare(record: harness.Record, name: str, unit: str, work: int, turns: dict[str, Callable[[], float]]) -> None:
    """Rates of both sides, and the CPU time of this process for each of the `work` units of a turn."""
    spent: dict[str, list[float]] = {side: [] for side in turns}

    def counted(side: str) -> float:
        before = time.process_time()
        rate = turns[side]()
        spent[side].append(1e6 * (time.process_time() - before) / work)
        return rate

    record.compare(name, f"{unit}s/s", {side: functools.partial(counted, side) for side in turns})
    for side, times in spent.items():
        record.one(f"{name}, trainer's CPU, {side}", statistics.median(times[1:]), f"us a {unit}")


def main() -> None:
    options = harness.arguments(__doc__)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = str(harness.ROOT)
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=2, object_store_memory=STORE)
    limits = Limits(call_seconds=30.0, reset_seconds=30.0, episode_seconds=600.0, cpu_seconds=600)
    try:
        start = time.perf_counter()
        with RayPool(limits, address=cluster.address) as remote, Pool(limits) as local:
            record = harness.Record(options)
            record.one("start of both pools", time.perf_counter() - start, "s")
            pools = {"ray": remote, "local": local}
            for side, pool in pools.items():
                local_pool.record_times(record, f"step round trip, {side}", local_pool.round_trips(pool))
            for count in (2, 8, 64, 256):
                envs = {side: [local_pool.started(pool) for _ in range(count)] for side, pool in pools.items()}
                steps = {side: functools.partial(local_pool.lock_step, pools[side], envs[side]) for side in pools}
                compare(record, f"lock-step, {count} environments", "step", local_pool.LOCK_STEPS, steps)
                for side, pool in pools.items():
                    for env in envs[side]:
                        pool.close(env)
            for at_once in (8, 64):
                fresh = {side: functools.partial(local_pool.fresh_programs, pools[side], at_once) for side in pools}
                compare(record, f"fresh programs, {at_once} at once", "program", local_pool.PROGRAMS, fresh)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
