"""A pool that runs programs in this process: fast, and only for programs written in these tests."""

from __future__ import annotations

import collections
import dataclasses
import random
from typing import Any

import pytest

from spade_jax.envs.families import number_search

WORDS = ["loop", "lantern", "river", "stone", "harbor", "garden", "bridge", "tower"]


@dataclasses.dataclass(frozen=True)
class FakeReply:
    ticket: int
    env: int
    ok: bool
    value: Any = None
    error: str = ""
    kind: str = "ok"
    seconds: float = 0.001


class FakePool:
    """The sandbox pool's interface without a sandbox.

    `HASH_SEED` in a program's globals stands for what a process's hash seed changes.
    """

    def __init__(self):
        self.max_live = 96
        self.live: dict[int, dict] = {}
        self.broken = False
        self._replies = collections.deque()
        self._count = 0

    def _next(self) -> int:
        self._count += 1
        return self._count

    def open(self, source, class_name, *, hash_seed=0):
        env = self._next()
        self.live[env] = {"source": source, "class_name": class_name, "hash_seed": hash_seed}
        return env

    def request(self, env, method, *args, seconds=None):
        ticket = self._next()
        self._replies.append(self._answer(ticket, env, method, args))
        return ticket

    def poll(self, timeout):
        # Out of order on purpose: the gate must go by tickets.
        replies = list(reversed(self._replies))
        self._replies.clear()
        return replies

    def close(self, env):
        self.live.pop(env, None)

    def _answer(self, ticket, env, method, args):
        child = self.live[env]
        if self.broken:
            return FakeReply(ticket, env, False, error="fork server died", kind="infrastructure")
        try:
            if method == "construct":
                scope = {"__name__": "program", "HASH_SEED": child["hash_seed"]}
                exec(child["source"], scope)
                child["instance"] = scope[child["class_name"]]()
                return FakeReply(ticket, env, True)
            value = getattr(child["instance"], method)(*args)
        except TimeoutError as error:
            return FakeReply(ticket, env, False, error=str(error), kind="timeout")
        except Exception as error:
            return FakeReply(ticket, env, False, error=f"{type(error).__name__}: {error}", kind="exception")
        if method == "step" and not (isinstance(value, tuple) and len(value) == 5 and isinstance(value[0], str)):
            return FakeReply(ticket, env, False, error="ContractError: no 5-tuple", kind="exception")
        return FakeReply(ticket, env, True, value)


@pytest.fixture
def pool():
    return FakePool()


@pytest.fixture
def sound_source():
    """A program that keeps the whole contract."""
    family = number_search.FAMILY
    return family.source(family.parameters(random.Random(0), "train"), WORDS)
