"""Keeps many gates busy on one single-threaded sandbox pool."""

from __future__ import annotations

import itertools
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from spade_jax.designer import parse
from spade_jax.designer.gate.session import CHILDREN, GateCall, ReplyLike

MAX_CONCURRENT = 32  # gates at once


class PoolLike(Protocol):
    """What the gate needs of `spade_jax.sandbox.Pool`."""

    max_live: int

    def open(self, source: str, class_name: str, *, hash_seed: int = 0) -> int: ...

    def request(self, env: int, method: str, *args: Any, seconds: float | None = None) -> int: ...

    def poll(self, timeout: float | None) -> list[Any]: ...

    def close(self, env: int) -> None: ...


def drive(
    pool: PoolLike,
    gates: Sequence[Generator[GateCall, list[ReplyLike], Any]],
    sources: Sequence[str | None],
    kind: str,
) -> list[Any]:
    """Runs one gate per source, as many at once as the pool has room for; returns what each returned, in order.

    The pool must be otherwise idle: replies to requests made elsewhere are dropped.
    """
    results: list[Any] = [None] * len(gates)
    unstarted = iter(range(len(gates)))
    children: dict[tuple[int, int], int] = {}  # (gate, child) -> env id
    waiting: dict[int, int] = {}  # ticket -> gate
    tickets: dict[int, list[int]] = {}  # gate -> its tickets, in the order of its calls
    arrived: dict[int, ReplyLike] = {}

    def advance(gate: int | None, replies: list[ReplyLike] | None) -> None:
        """Sends a gate its replies; where that ends it, starts the next ones until one has to wait."""
        while gate is not None:
            try:
                call = gates[gate].send(replies)
            except StopIteration as stop:
                results[gate] = stop.value
                for key in [key for key in children if key[0] == gate]:
                    pool.close(children.pop(key))
                gate, replies = next(unstarted, None), None
                continue
            key = (gate, call.child)
            if call.fresh and key in children:
                pool.close(children.pop(key))
            if key not in children:
                program = parse.parse_program(sources[gate], kind)
                children[key] = pool.open(program.source, program.class_name, hash_seed=call.hash_seed)
            tickets[gate] = [pool.request(children[key], method, *args) for method, args in call.calls]
            waiting.update(dict.fromkeys(tickets[gate], gate))
            return

    # More gates than the pool holds the children of would wait for each other for ever.
    concurrent = min(MAX_CONCURRENT, max(1, pool.max_live // CHILDREN))
    try:
        for gate in itertools.islice(unstarted, concurrent):
            advance(gate, None)
        while waiting:
            for reply in pool.poll(None):
                if reply.ticket not in waiting:
                    continue
                gate = waiting.pop(reply.ticket)
                arrived[reply.ticket] = reply
                if all(ticket in arrived for ticket in tickets[gate]):
                    advance(gate, [arrived.pop(ticket) for ticket in tickets.pop(gate)])
    finally:
        for env in children.values():
            pool.close(env)
    return results
