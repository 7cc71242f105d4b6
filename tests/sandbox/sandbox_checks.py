"""What the sandbox's tests and benchmarks share: programs, sound and hostile, and looks at /proc."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import time
from collections.abc import Callable

from spade_jax.sandbox import Limits, Pool, Reply

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


HOSTILE = pathlib.Path(__file__).parents[1] / "hostile" / "host"
HOSTILE_LIMITS = Limits(memory_mb=64, call_seconds=1.0, reset_seconds=2.0, cpu_seconds=10)


@dataclasses.dataclass(frozen=True)
class Attack:
    """A program of tests/hostile/host; test_hostile_host.py says what its header means."""

    name: str
    source: str
    expect: tuple[str, ...]
    needs: tuple[str, ...]
    unbounded: bool


def attacks() -> list[Attack]:
    found = []
    for path in sorted(HOSTILE.glob("*.py")):
        source = path.read_text()
        headers = dict(re.findall(r"^# (\w+): (.+)$", source, re.MULTILINE))
        expect, needs = (
            tuple(word.strip() for word in headers.get(key, "").split(",") if word) for key in ("expect", "needs")
        )
        found.append(Attack(path.stem, source, expect, needs, "unbounded" in headers))
    return found


def escape(attack: Attack, replies: list[Reply]) -> str:
    """What `attack` achieved, given its replies; "" if nothing. AssertionError if it never ran."""
    if replies[-1].kind not in attack.expect:
        return f"{replies[-1].kind}: {replies[-1].error}"
    for reply in replies[2:]:  # the first two are of construct and reset
        if reply.ok and replies[-1].ok:  # a flood begins with a forged "ok", and says nothing of itself
            info = reply.value[4]
            assert info["attempts"] >= 1, f"{attack.name} never attacked"
            if info["escaped"]:
                return f"{info['escaped']} of {info['attempts']} attempts"
    return ""


def run_attack(pool: Pool, attack: Attack) -> tuple[int, list[Reply]]:
    """Plays the program until something else than "ok" comes; returns its environment and the replies."""
    env = pool.open(attack.source, "Hostile")
    replies = []
    for method, args in (("construct", ()), ("reset", (0,)), ("step", ("go",)), ("step", ("go",))):
        replies.append(pool.call(env, method, *args))
        if not replies[-1].ok:
            break
    return env, replies


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
    """The processes that fork: children of those that the trainer started where there are namespaces."""
    outer = [server.process.pid for server in pool._servers.values()]
    if any(status.name == "namespaces" and status.active for status in pool.layers):
        return [inner for pid in outer for inner, _ in children(pid)]
    return outer


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
