"""What a process per environment costs: `python tests/benchmarks/pool.py [--json=FILE]`.

Beside ours stands what others take for the same work: gymnasium's AsyncVectorEnv,
which isolates nothing, in lock step, and a fresh interpreter for every program,
bare and with numpy and gymnasium imported. Sides take turns, so that a busy machine
troubles both alike; the others are wall times, for which other work should be closed.
Where it cannot be, CPU time tells more than wall time: children have sessions of
their own, to which Linux gives shares of their own. No JAX.
"""

from __future__ import annotations

import functools
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

import gymnasium
import harness
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
BATCH = 64
# What one child for many instances would give. It is no mode of ours: an instance could reach into the others.
BATCH_PROGRAM = (
    PROGRAM
    + f"""

class Batch:
    def reset(self, seed=None):
        self.envs = [Env() for _ in range({BATCH})]
        return " ".join(env.reset(seed)[0] for env in self.envs), {{}}

    def step(self, action):
        steps = [env.step(one) for env, one in zip(self.envs, action.split())]
        return ". ".join(step[0] for step in steps), sum(step[1] for step in steps), False, False, {{}}
"""
)
SPAWNS, ROUND_TRIPS, LOCK_STEPS, PROGRAMS, PROGRAM_STEPS, INTERPRETERS = 300, 5000, 6400, 100, 100, 8


def record_times(record: harness.Record, name: str, seconds: list[float]) -> None:
    cuts = statistics.quantiles(seconds, n=100)
    record.one(f"{name}, p50", 1e3 * cuts[49], "ms")
    record.one(f"{name}, p99", 1e3 * cuts[98], "ms")


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of this process and of the given ones so far."""
    spent = (int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids)
    return time.process_time() + sum(spent) / 1e9


def started(pool: Pool, source: str = PROGRAM, class_name: str = "Env") -> int:
    env = pool.open(source, class_name)
    for method, args in (("construct", ()), ("reset", (0,))):
        reply = pool.call(env, method, *args)
        assert reply.ok, reply
    return env


def spawns(pool: Pool) -> list[float]:
    """Seconds from `open` to the first observation, one at a time, every child closed at once."""
    return [harness.timed(lambda: pool.close(started(pool))) for _ in range(SPAWNS)]


def round_trips(pool: Pool) -> list[float]:
    """Seconds of a step."""
    env = started(pool)
    samples = [harness.timed(lambda: pool.call(env, "step", "50")) for _ in range(ROUND_TRIPS)]
    pool.close(env)
    return samples


def socket_round_trips() -> list[float]:
    """The machine's own limit: two interpreters that answer each other with a few bytes."""
    echo = "import os\nwhile data := os.read(0, 99): os.write(1, data)"
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen([sys.executable, "-I", "-S", "-c", echo], stdin=theirs, stdout=theirs)
        samples = [harness.timed(lambda: (ours.send(b"50"), ours.recv(99))) for _ in range(ROUND_TRIPS)]
        ours.shutdown(socket.SHUT_WR)
        process.wait()
    return samples


def lock_step(pool: Pool, envs: list[int], action: str = "50") -> float:
    """All environments step, then all replies are awaited, then again: steps per second."""
    rounds = LOCK_STEPS // len(envs)
    start = time.perf_counter()
    for _ in range(rounds):
        for env in envs:
            pool.request(env, "step", action)
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


def compare_lock_step(record: harness.Record, pool: Pool, count: int) -> None:
    """Wall time and CPU time of lock step against AsyncVectorEnv's."""
    envs = [started(pool) for _ in range(count)]
    vector = gymnasium.vector.AsyncVectorEnv([GymnasiumEnv] * count, shared_memory=False)
    spent: dict[str, list[float]] = {harness.OURS: [], "AsyncVectorEnv": []}

    def counted(side: str, steps: Callable[[], float], pids: Sequence[int]) -> harness.Turn:
        def turn() -> float:
            before = cpu_seconds(pids)
            rate = steps()
            spent[side].append(1e6 * (cpu_seconds(pids) - before) / LOCK_STEPS)
            return rate

        return turn

    try:
        vector.reset(seed=0)
        mine, others = [pool._envs[env].pid for env in envs], [process.pid for process in vector.processes]
        sides = {
            harness.OURS: counted(harness.OURS, lambda: lock_step(pool, envs), mine),
            "AsyncVectorEnv": counted("AsyncVectorEnv", lambda: vector_lock_step(vector, count), others),
        }
        record.compare(f"lock-step, {count} environments", "steps/s", sides)
    finally:
        vector.close()
        for env in envs:
            pool.close(env)
    for side, times in spent.items():
        record.one(f"lock-step, {count} environments, CPU of {side}", statistics.median(times[1:]), "us a step")


def compare_with_lock_step(record: harness.Record, pool: Pool, name: str, steps: Callable[[list[int]], float]) -> None:
    """`steps` of 64 environments against their lock step."""
    envs = [started(pool) for _ in range(64)]
    record.compare(name, "steps/s", {name: lambda: steps(envs), "lock-step": lambda: lock_step(pool, envs)})
    for env in envs:
        pool.close(env)


def compare_batches(record: harness.Record, pool: Pool) -> None:
    batches = [started(pool, BATCH_PROGRAM, "Batch") for _ in range(2)]
    action = " ".join(["50"] * BATCH)
    steps = functools.partial(lock_step, pool, batches, action)
    compare_with_lock_step(record, pool, f"two children of {BATCH}", lambda _: BATCH * steps())
    for env in batches:
        pool.close(env)


def fresh_programs(pool: Pool, at_once: int = 8) -> float:
    """Construct, 100 pipelined steps, destroy; both fork servers, `at_once` under way."""

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
        while begun < PROGRAMS and len(owed) < at_once:
            begin(begun)
            begun += 1
        for reply in pool.poll(None):
            owed[reply.env] -= 1
            if owed[reply.env] == 0:
                del owed[reply.env]
                pool.close(reply.env)
    return PROGRAMS / (time.perf_counter() - start)


def fresh_interpreters(imports: str) -> float:
    """The comparison: an isolated interpreter per program, same work, no messages; as many at once as cores."""
    script = f"{imports}\n{PROGRAM}e = Env(); e.reset(0)\nfor _ in range({PROGRAM_STEPS}): e.step('50')"
    command = [sys.executable, "-I", *([] if imports else ["-S"]), "-c", script]
    cores = len(os.sched_getaffinity(0))
    start = time.perf_counter()
    for _ in range(INTERPRETERS):
        for process in [subprocess.Popen(command) for _ in range(cores)]:
            assert process.wait() == 0
    return INTERPRETERS * cores / (time.perf_counter() - start)


def main() -> None:
    options = harness.arguments(__doc__)
    start = time.perf_counter()
    limits = Limits(call_seconds=30.0, reset_seconds=30.0, episode_seconds=600.0, cpu_seconds=600)
    with Pool(limits, max_live=512) as pool:
        ready = time.perf_counter() - start
        record = harness.Record(options, {"layers": layers.describe(pool.layers)})
        record.one("pool start", 1e3 * ready, "ms")
        record_times(record, "open to first observation", spawns(pool))
        record_times(record, "step round trip", round_trips(pool))
        record_times(record, "two interpreters on a socket", socket_round_trips())
        for count in (2, 8, 64):
            compare_lock_step(record, pool, count)
        compare_with_lock_step(record, pool, "pipelined", lambda envs: pipelined(pool, envs))
        compare_batches(record, pool)
        for imports in ("", "import numpy, gymnasium"):
            name = f"an interpreter each{imports and f', {imports}'}"
            sides = {harness.OURS: lambda: fresh_programs(pool), name: functools.partial(fresh_interpreters, imports)}
            record.compare("fresh programs", "programs/s", sides)


if __name__ == "__main__":
    main()
