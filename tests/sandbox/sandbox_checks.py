"""What the sandbox's tests share: a sound program, and looks at /proc."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Callable

from spade_jax.sandbox import Pool

COUNTER = '''
import random


class Counter:
    """Counts to three; says its seed, and a draw from it."""

    def reset(self, seed=None):
        self.count = 0
        return f"seed {seed} draw {random.Random(seed).randrange(1000)}", {"start": True}

    def step(self, action):
        self.count += 1
        done = self.count == 3
        return f"{action} {self.count}", self.count / 3, done, False, {"success": done}

    def solution(self):
        return ["up"] * 3

    def secrets(self):
        return []
'''


def play_counter(pool: Pool, env: int) -> None:
    """Plays COUNTER once and checks every answer."""
    reply = pool.call(env, "construct")
    assert reply.ok, reply
    reply = pool.call(env, "reset", 5)
    assert reply.value == ("seed 5 draw 637", {"start": True}), reply
    assert pool.call(env, "step", "a").value == ("a 1", 1 / 3, False, False, {"success": False})


def children(parent: int) -> list[tuple[int, str]]:
    """(pid, state letter) of each child of `parent`, zombies included."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == parent:
                found.append((int(entry.name), fields[0]))
    return found


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie that init has yet to reap counts)."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def server_pids(pool: Pool) -> list[int]:
    return [server.process.pid for server in pool._servers.values()]


def descriptors(pid: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether `condition` comes true within `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def settle(pool: Pool) -> None:
    """Lets the fork servers reap what was closed."""

    def reaped() -> bool:
        pool.poll(0)
        return pool.live == len(pool._envs)

    assert eventually(reaped)
