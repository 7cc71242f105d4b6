"""What a process per environment costs: `python tests/benchmarks/bench_sandbox.py`.

Prints one line per figure, and beside ours what others take for the same work:
gymnasium's AsyncVectorEnv, which isolates nothing, in lock step, and a fresh
interpreter for every program. Compared figures are medians over interleaved
rounds, so that a busy machine troubles both alike; the others are wall times,
for which other work should be closed. No JAX.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import gymnasium
import numpy as np
from gymnasium import spaces

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
SPAWNS, ROUND_TRIPS, LOCK_STEPS, PROGRAMS, PROGRAM_STEPS, INTERPRETERS = 300, 5000, 6400, 100, 100, 8
ROUNDS = 5  # of each side of a comparison


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


def lock_step(pool: Pool, envs: list[int]) -> float:
    """All environments step, then all replies are awaited, then again: steps per second."""
    rounds = LOCK_STEPS // len(envs)
    start = time.perf_counter()
    for _ in range(rounds):
        for env in envs:
            pool.request(env, "step", "50")
        missing = len(envs)
        while missing:
            missing -= len(pool.poll(None))
    return rounds * len(envs) / (time.perf_counter() - start)


def pipelined(pool: Pool, envs: list[int]) -> float:
    """Each environment is sent all its steps at once: steps per second."""
    each = 4 * LOCK_STEPS // len(envs)
    start = time.perf_counter()
    for _ in range(each):
        for env in envs:
            pool.request(env, "step", "50")
    missing = each * len(envs)
    while missing:
        missing -= len(pool.poll(None))
    return each * len(envs) / (time.perf_counter() - start)


class GymnasiumEnv(gymnasium.Env):
    """The same program behind gymnasium's interface."""

    observation_space = spaces.Text(64)
    action_space = spaces.Discrete(100)

    def __init__(self) -> None:
        namespace: dict[str, type] = {}
        exec(PROGRAM, namespace)
        self._program = namespace["Env"]()

    def reset(self, *, seed=None, options=None):
        return self._program.reset(seed)

    def step(self, action):
        return self._program.step(str(action))


def vector_lock_step(vector: gymnasium.vector.AsyncVectorEnv, count: int) -> float:
    actions = np.full(count, 50)
    rounds = LOCK_STEPS // count
    start = time.perf_counter()
    for _ in range(rounds):
        vector.step(actions)
    return rounds * count / (time.perf_counter() - start)


def against(ours: Callable[[], float], theirs: Callable[[], float], unit: str, name: str) -> str:
    """Medians of interleaved rounds, and the median of the rounds' ratios."""
    pairs = [(ours(), theirs()) for _ in range(ROUNDS)]
    median, other = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratio = statistics.median(a / b for a, b in pairs)
    return f"{median:,.0f} {unit}; {name} {other:,.0f}; ratio {ratio:.2f}"


def compared_lock_step(pool: Pool, count: int) -> str:
    envs = [started(pool) for _ in range(count)]
    vector = gymnasium.vector.AsyncVectorEnv([GymnasiumEnv] * count, shared_memory=False)
    try:
        vector.reset(seed=0)
        return against(
            lambda: lock_step(pool, envs), lambda: vector_lock_step(vector, count), "steps/s", "AsyncVectorEnv"
        )
    finally:
        vector.close()
        for env in envs:
            pool.close(env)


def compared_batches(pool: Pool, count: int) -> str:
    envs = [started(pool) for _ in range(count)]
    said = against(lambda: pipelined(pool, envs), lambda: lock_step(pool, envs), "steps/s", "lock-step")
    for env in envs:
        pool.close(env)
    return said


def fresh_programs(pool: Pool) -> float:
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
    return PROGRAMS / (time.perf_counter() - start)


def fresh_interpreters() -> float:
    """The comparison: an isolated interpreter per program, same work, no messages; as many at once as cores."""
    script = PROGRAM + f"e = Env(); e.reset(0)\nfor _ in range({PROGRAM_STEPS}): e.step('50')"
    command = [sys.executable, "-I", "-S", "-c", script]
    cores = len(os.sched_getaffinity(0))
    start = time.perf_counter()
    for _ in range(INTERPRETERS):
        for process in [subprocess.Popen(command) for _ in range(cores)]:
            assert process.wait() == 0
    return INTERPRETERS * cores / (time.perf_counter() - start)


def main() -> None:
    start = time.perf_counter()
    limits = Limits(call_seconds=30.0, reset_seconds=30.0, episode_seconds=600.0, cpu_seconds=600)
    with Pool(limits, max_live=512) as pool:
        print(f"layers                     {layers.describe(pool.layers)}")
        print(f"pool start                 {1e3 * (time.perf_counter() - start):.0f} ms")
        print(f"spawn to first observation {spawn(pool)}")
        print(f"step round trip            {round_trip(pool)}")
        for count in (2, 8, 64):
            print(f"{f'lock-step, {count} environments':26} {compared_lock_step(pool, count)}")
        print(f"pipelined, 64 environments {compared_batches(pool, 64)}")
        said = against(lambda: fresh_programs(pool), fresh_interpreters, "programs/s", "interpreters")
        print(f"fresh programs             {said}")


if __name__ == "__main__":
    main()
