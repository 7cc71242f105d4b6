"""The far end of a `RayPool`: one node's pool, which is an ordinary one, behind a Ray actor.

This is trusted code, as the trainer is; between it and the programs stands everything that `Pool` has. It and the
trainer speak in batches, each the argument or the result of one call of the actor: bytes, a row of the frames of
`wire.py`, which Ray hands over as they are and never pickles.

    in   ["open", env, [source, class_name, hash_seed]]
         ["call", env, [ticket, method, args, seconds]]
         ["close", env, []]
    out  [ticket, [ok, kind, error, seconds], value]

Ids of environments and tickets are the trainer's. Ray is not imported here.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from spade_jax.sandbox import modules, wire
from spade_jax.sandbox.limits import Limits
from spade_jax.sandbox.pool import Pool
from spade_jax.sandbox.replies import SandboxError

HEARTBEAT_SECONDS = 5.0  # an exchange that has nothing to say ends after this long
_GATHER_SECONDS = 1e-3  # from the first reply of a batch to its end, where more are owed
_TICK_SECONDS = 0.05  # between two looks at deadlines and memory


def source_digest() -> str:
    """A hash of what decides how a program runs: this room's files and what it provides to programs."""
    room = pathlib.Path(__file__).parent
    files = [*room.rglob("*.py"), *(room.parent / path for path in modules.PROVIDED_MODULES.values())]
    digest = hashlib.sha256(repr(sys.version_info[:2]).encode())
    for path in sorted(files):
        digest.update(os.path.relpath(path, room).encode() + path.read_bytes())
    return digest.hexdigest()


def frames(batch: bytes) -> Iterator[list[Any]]:
    """The messages of a batch."""
    reader = wire.FrameReader(None)
    reader.feed(batch)
    while (message := reader.next()) is not None:
        yield message


class Host:
    """One node's pool for one trainer. All methods run in one event loop, in one thread."""

    def __init__(self) -> None:
        self._pool: Pool | None = None
        self._envs: dict[int, int] = {}  # the trainer's id -> the pool's
        self._tickets: dict[int, dict[int, int]] = {}  # the pool's environment -> its owed tickets -> the trainer's
        self._owed = 0  # tickets in there
        self._replies: list[bytes] = []
        self._failure: Exception | None = None  # of the pool as a whole
        self._early: dict[int, bytes] = {}  # batches by number that came before their turn
        self._next = 0
        self._waiting = asyncio.Event()  # of the exchange that waits; set when there is news for it

    async def start(self, settings: str) -> str:
        """Starts the pool with {name of an argument of `Pool`: value}.

        Returns JSON: {"error": text} where it cannot, else {"digest": `source_digest()`, "layers": [...]}.
        """
        given = json.loads(settings)
        try:
            self._pool = Pool(Limits(**given.pop("limits")), **given)
        except (SandboxError, ValueError) as error:
            return json.dumps({"error": str(error)})
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pool.fileno(), self._collect)
        self._ticking = self._loop.create_task(self._tick())
        return json.dumps({"digest": source_digest(), "layers": [dataclasses.astuple(s) for s in self._pool.layers]})

    async def exchange(self, number: int, batch: bytes) -> bytes:
        """Takes the batch of this number, counted from 0; returns what has been answered.

        Waits for a reply, and for others that come soon after it; not at all for what an
        exchange of a higher number can bring, which may have begun before this one.

        Raises:
          SandboxError: the pool cannot go on.
        """
        self._early[number] = batch
        while (batch := self._early.pop(self._next, None)) is not None:
            self._next += 1
            for message in frames(batch):
                self._take(*message)
        self._waiting.set()
        self._waiting = mine = asyncio.Event()
        self._collect()
        await self._until(mine, lambda: bool(self._replies), HEARTBEAT_SECONDS)
        await self._until(mine, lambda: not self._owed, _GATHER_SECONDS)
        if self._failure is not None:
            raise self._failure
        if mine is not self._waiting:
            return b""
        replies = b"".join(self._replies)
        self._replies.clear()
        return replies

    async def _until(self, mine: asyncio.Event, done: Callable[[], bool], seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while mine is self._waiting and self._failure is None and not done():
                    mine.clear()
                    await mine.wait()

    async def _tick(self) -> None:
        while self._failure is None:
            await asyncio.sleep(_TICK_SECONDS)
            self._collect()

    def _take(self, what: str, env: int, content: list[Any]) -> None:
        if what == "open":
            source, class_name, hash_seed = content
            mine = self._envs[env] = self._pool.open(source, class_name, hash_seed=hash_seed)
            self._tickets[mine] = {}
        elif what == "call":
            ticket, method, args, seconds = content
            mine = self._envs[env]
            self._tickets[mine][self._pool.request(mine, method, *args, seconds=seconds)] = ticket
            self._owed += 1
        else:
            mine = self._envs.pop(env)
            self._pool.close(mine)
            self._owed -= len(self._tickets.pop(mine))

    def _collect(self) -> None:
        if self._failure is not None:
            return
        try:
            for reply in self._pool.poll(0.0):
                ticket = self._tickets[reply.env].pop(reply.ticket)
                self._owed -= 1
                result = [reply.ok, reply.kind, reply.error, reply.seconds]
                self._replies.append(wire.encode([ticket, result, reply.value]))
        except Exception as error:  # nobody would hear of it: this is called by the event loop
            self._failure = error
            self._loop.remove_reader(self._pool.fileno())
        if self._replies or self._failure is not None:
            self._waiting.set()
