"""What a process per environment costs: `python tests/benchmarks/bench_sandbox.py`.

Prints one line per figure, wall time and the CPU time of this process (the
supervisor, whose share bounds the pool). Close other work first: on a busy
machine the wall times measure the scheduler. No JAX.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from spade_jax.sandbox import Limits, Pool, layers

PROGRAM = """
class Env:
    def reset(self, seed=None):
        self.turn = 0
        return "guess a number", {}

    def step(self, action):
        self.turn += 1
        return f"turn {self.turn}: {action} is too low", 0.0, False, False, {}
"""
SPAWNS, ROUND_TRIPS, LOCK_STEPS, PROGRAMS, PROGRAM_STEPS = 300, 5000, 300, 200, 100


def milliseconds(samples: list[float]) -> str:
    cuts = statistics.quantiles(samples, n=100)
    return f"p50 {1e3 * cuts[49]:.3f} ms, p99 {1e3 * cuts[98]:.3f} ms"


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def started(pool: Pool) -> int:
    env = pool.open(PROGRAM, "Env")
    for method, args in (("construct", ()), ("reset", (0,))):
        reply = pool.call(env, method, *args)
        assert reply.ok, reply
    return env


def spawn(pool: Pool) -> str:
    """From `open` to the first observation, one at a time, every child closed at once."""
    return milliseconds([timed(lambda: pool.close(started(pool))) for _ in range(SPAWNS)])


def round_trip(pool: Pool) -> str:
    env = started(pool)
    samples = [timed(lambda: pool.call(env, "step", "50")) for _ in range(ROUND_TRIPS)]
    pool.close(env)
    return milliseconds(samples)


def lock_step(pool: Pool, count: int) -> str:
    """All environments step, then all replies are awaited, then again: steps per second."""
    envs = [started(pool) for _ in range(count)]
    rounds = max(10, LOCK_STEPS * 64 // (4 * count))
    cpu, start = time.process_time(), time.perf_counter()
    for _ in range(rounds):
        for env in envs:
            pool.request(env, "step", "50")
        missing = count
        while missing:
            missing -= len(pool.poll(None))
    wall, cpu = time.perf_counter() - start, time.process_time() - cpu
    for env in envs:
        pool.close(env)
    steps = rounds * count
    return f"{steps / wall:,.0f} steps/s ({1e6 * cpu / steps:.1f} us of supervisor CPU a step)"


def fresh_programs(pool: Pool) -> str:
    """Construct, 100 pipelined steps, destroy; both fork servers, eight under way."""

    def begin(index: int) -> None:
        env = pool.open(PROGRAM, "Env", hash_seed=index % 2)
        owed[env] = PROGRAM_STEPS + 2
        pool.request(env, "construct")
        pool.request(env, "reset", 0)
        for _ in range(PROGRAM_STEPS):
            pool.request(env, "step", "50")

    owed: dict[int, int] = {}
    begun = 0
    start = time.perf_counter()
    while begun < PROGRAMS or owed:
        while begun < PROGRAMS and len(owed) < 8:
            begin(begun)
            begun += 1
        for reply in pool.poll(None):
            owed[reply.env] -= 1
            if owed[reply.env] == 0:
                del owed[reply.env]
                pool.close(reply.env)
    return f"{PROGRAMS / (time.perf_counter() - start):,.0f} programs/s"


def fresh_interpreters() -> str:
    """The comparison: an isolated interpreter per program, same work, no messages."""
    script = PROGRAM + f"e = Env(); e.reset(0)\nfor _ in range({PROGRAM_STEPS}): e.step('50')"
    count = 20
    wall = timed(lambda: [subprocess.run([sys.executable, "-I", "-S", "-c", script], check=True) for _ in range(count)])
    return f"{count / wall:,.0f} programs/s"


def main() -> None:
    start = time.perf_counter()
    with Pool(Limits(call_seconds=30.0, reset_seconds=30.0, cpu_seconds=600), max_live=512) as pool:
        print(f"layers                     {layers.describe(pool.layers)}")
        print(f"pool start                 {1e3 * (time.perf_counter() - start):.0f} ms")
        print(f"spawn to first observation {spawn(pool)}")
        print(f"step round trip            {round_trip(pool)}")
        for count in (2, 8, 64, 512):
            print(f"{f'lock-step, {count} environments':26} {lock_step(pool, count)}")
        print(f"fresh programs             {fresh_programs(pool)}")
    print(f"fresh interpreters         {fresh_interpreters()}")


if __name__ == "__main__":
    main()
