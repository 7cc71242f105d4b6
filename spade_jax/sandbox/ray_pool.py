"""A pool whose programs run on the CPU nodes of a Ray cluster: the interface of `Pool`, and the same answers.

One actor a node has an ordinary pool there (`ray_host.py`), so that a program is contained on the node exactly as it
would be here. What is asked for is kept until the next `poll` or `call` and goes out as one batch a node; the replies
come back in batches, too. So the price of a message between machines is shared by all environments of a node.

A node may die at any time: what it owed is answered as `infrastructure`, and so is what is asked later of an
environment that was there. New environments go to the nodes that are left, and to those that come back or join.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import logging
import math
import signal
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from spade_jax.sandbox import layers, ray_host, wire
from spade_jax.sandbox.limits import DEFAULT_LIMITS, Limits
from spade_jax.sandbox.pool import HASH_SEEDS
from spade_jax.sandbox.replies import DIED, INFRASTRUCTURE, Reply, SandboxError

_CONNECT_SECONDS = 10.0
_START_SECONDS = 120.0  # for a node's actor: a new Python that imports Ray, on a machine that may be busy
_LOOK_SECONDS = 2.0  # between two looks at who is in the cluster
_RETRY_SECONDS = 30.0  # until a node that failed is tried again
_SILENT_SECONDS = 12 * ray_host.HEARTBEAT_SECONDS  # a node that has said nothing for so long is given up
_ALONE_SECONDS = 180.0  # how long environments wait for a node to come where there is none

_log = logging.getLogger(__name__)


@dataclasses.dataclass(eq=False)
class _Node:
    """A node of the cluster, as the pool sees it.

    Attributes:
      id: Ray's.
      name: its address, for messages.
      cores: that Ray counts there.
      actor: the handle of its `Host`.
      heard: when it was last heard of.
      ready: its pool has started.
      layers: which isolation layers it has.
      envs: environments that are there.
      outgoing: frames of the next batch.
      batches: how many have been sent.
      calls: exchanges under way.
    """

    id: str
    name: str
    cores: float
    actor: Any
    heard: float
    ready: bool = False
    layers: tuple[layers.LayerStatus, ...] = ()
    envs: set[int] = dataclasses.field(default_factory=set)
    outgoing: list[bytes] = dataclasses.field(default_factory=list)
    batches: int = 0
    calls: int = 0


@dataclasses.dataclass(eq=False)
class _Environment:
    """One environment.

    Attributes:
      node: where it is; None while it waits for a place, and after its node was lost.
      frames: what the node has to be sent, kept here while it waits for a place.
      failure: why its node was lost, "" if it was not.
      owed: tickets that have not been answered -> (method, when it was asked).
    """

    node: _Node | None
    frames: list[bytes]
    failure: str = ""
    owed: dict[int, tuple[str, float]] = dataclasses.field(default_factory=dict)


class RayPool:
    """Runs untrusted programs on a Ray cluster; see `Pool`, whose methods and answers these are.

    Attributes:
      limits: the limits of every child.
      isolation: strict, best_effort or none; holds on every node.
      required: the layers without which `strict` takes no node.
      max_live: environments at once on all nodes together; further ones wait for a place.
      memory_mb_total: memory of all children of one node together, MiB.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        isolation: str = "strict",
        max_live: int = 512,
        *,
        required: Sequence[str] = layers.REQUIRED,
        memory_mb_total: int = 16_384,
        address: str = "auto",
    ) -> None:
        """Starts a pool on every node of the cluster that offers CPUs, and waits until they are warm.

        Args:
          address: of the cluster that this machine has joined; "auto" finds it.

        Raises:
          SandboxError: no Ray, no cluster, no such node, or one of them cannot run the sandbox as it should.
        """
        self._ray = _import_ray()
        self.limits = limits
        self.isolation = isolation
        self.max_live = max_live
        self.required = tuple(required)
        self.memory_mb_total = memory_mb_total
        self._settings = json.dumps(
            {
                "limits": dataclasses.asdict(limits),
                "isolation": isolation,
                "max_live": max_live,
                "required": self.required,
                "memory_mb_total": memory_mb_total,
            }
        )
        self._digest = ray_host.source_digest()
        self._nodes: dict[str, _Node] = {}  # those that start among them
        self._retry_at: dict[str, float] = {}  # nodes that failed
        self._calls: dict[Any, _Node] = {}  # Ray's references to what is under way
        self._envs: dict[int, _Environment] = {}  # open for the caller
        self._tickets: dict[int, int] = {}  # owed -> environment
        self._waiting: collections.deque[int] = collections.deque()  # environments without a place
        self._live = 0
        self._ready: collections.deque[Reply] = collections.deque()
        self._next_env = 0
        self._next_ticket = 0
        self._look_at = 0.0
        self._alone_since = math.inf  # since when there has been no node to go to, where one was lost
        self._closed = False
        self._connected = self._connect(address)
        try:
            self._look_around()
            while not all(node.ready for node in self._nodes.values()):
                self._receive(1.0, starting=True)
                self._give_up_silent(starting=True)
            if not self._nodes:
                raise SandboxError(
                    "no node of the Ray cluster offers a CPU, so that there is none for environments; "
                    "join some with `ray start --address=HEAD:6379 --num-cpus=N`"
                )
        except BaseException:
            self.shutdown()
            raise

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def layers(self) -> tuple[layers.LayerStatus, ...]:
        """Which isolation layers hold on every node; for the others what the first node that lacks one has seen."""
        ready = [node for node in self._nodes.values() if node.ready]
        return tuple(
            next((status for status in statuses if not status.active), statuses[0])
            for statuses in zip(*(node.layers for node in ready), strict=True)
        )

    @property
    def nodes(self) -> list[tuple[str, float]]:
        """(address, cores) of the nodes that environments can go to."""
        return [(node.name, node.cores) for node in self._nodes.values() if node.ready]

    @property
    def live(self) -> int:
        """Environments that have a place on a node."""
        return self._live

    def open(self, source: str, class_name: str, *, hash_seed: int = 0) -> int:
        """Asks for a child for the program, on the node with the most free cores; returns the environment's id."""
        self._check_open()
        if hash_seed not in HASH_SEEDS:
            raise ValueError(f"sandbox hash_seed={hash_seed} has no fork server; use one of {HASH_SEEDS}")
        env = self._next_env
        self._next_env += 1
        self._envs[env] = _Environment(None, [wire.encode(["open", env, [source, class_name, hash_seed]])])
        self._waiting.append(env)
        self._place()
        return env

    def request(self, env: int, method: str, *args: Any, seconds: float | None = None) -> int:
        """Asks for a call; returns the ticket that its reply will carry. See `Pool.request`.

        It goes out with the next `poll` or `call`.
        """
        self._check_open()
        if method not in wire.METHODS:
            raise ValueError(f"sandbox method {method!r} is unknown; use one of {', '.join(wire.METHODS)}")
        if not 0 <= env < self._next_env:
            raise ValueError(f"sandbox environment {env} was never opened")
        ticket = self._next_ticket
        frame = wire.encode(["call", env, [ticket, method, args, seconds]])
        self._next_ticket += 1
        target = self._envs.get(env)
        if target is None:
            self._answer(Reply(ticket, env, False, None, "the environment is closed", DIED, 0.0))
        elif target.failure:
            self._answer(Reply(ticket, env, False, None, target.failure, INFRASTRUCTURE, 0.0))
        else:
            self._tickets[ticket] = env
            target.owed[ticket] = (method, time.monotonic())
            (target.frames if target.node is None else target.node.outgoing).append(frame)
        return ticket

    def poll(self, timeout: float | None = 0.0) -> list[Reply]:
        """Sends what was asked for; replies that have arrived, oldest first. See `Pool.poll`."""
        self._check_open()
        self._wait(timeout, lambda: bool(self._ready) or not self._tickets)
        replies = list(self._ready)
        self._ready.clear()
        return replies

    def call(self, env: int, method: str, *args: Any, seconds: float | None = None) -> Reply:
        """`request`, then waits for its reply; other replies are kept for `poll`."""
        ticket = self.request(env, method, *args, seconds=seconds)
        self._wait(None, lambda: ticket not in self._tickets)
        found = next(reply for reply in self._ready if reply.ticket == ticket)
        self._ready.remove(found)
        return found

    def close(self, env: int) -> None:
        """Has the environment's child killed and forgets its outstanding replies; closing twice is fine."""
        self._check_open()
        target = self._envs.pop(env, None)
        if target is None:
            return
        for ticket in target.owed:
            del self._tickets[ticket]
        if any(reply.env == env for reply in self._ready):
            self._ready = collections.deque(reply for reply in self._ready if reply.env != env)
        if target.node is not None:
            target.node.outgoing.append(wire.encode(["close", env, []]))
            target.node.envs.remove(env)
            self._live -= 1
            self._place()
        elif not target.failure:
            self._waiting.remove(env)

    def shutdown(self) -> None:
        """Ends every actor of the pool, and with it its processes; idempotent."""
        if self._closed:
            return
        self._closed = True
        for node in self._nodes.values():
            self._kill(node)
        if self._connected:
            self._ray.shutdown()

    # --- the cluster -----------------------------------------------------------------

    def _connect(self, address: str) -> bool:
        """Joins the cluster; whether it is for us to leave it, too."""
        if self._ray.is_initialized():
            return False
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            host, _, port = address.rpartition(":")
            if host and port.isdigit():  # Ray would try for minutes
                socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
            self._ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except Exception as error:  # of many kinds, none of them Ray's own
            raise SandboxError(
                f"sandbox.ray_address={address} leads to no Ray cluster ({wire.one_line(str(error))}); start one with "
                "`ray start --head --num-cpus=0`, or have this machine join it with `ray start --address=HEAD:6379 "
                "--num-cpus=0`"
            ) from error
        signal.signal(signal.SIGTERM, on_sigterm)  # Ray has put its own there, which ends the process
        return True

    def _look_around(self) -> None:
        """Parts with the nodes that have left the cluster, and begins with those that have come."""
        now = time.monotonic()
        self._look_at = now + _LOOK_SECONDS
        found = self._offered()
        for node in [node for id_, node in self._nodes.items() if id_ not in found]:
            self._lose(node, "has left the cluster")
        self._retry_at = {id_: when for id_, when in self._retry_at.items() if id_ in found}
        for id_, seen in found.items():
            if id_ not in self._nodes and now >= self._retry_at.get(id_, 0.0):
                self._begin(id_, seen["NodeManagerAddress"], seen["Resources"]["CPU"])

    def _offered(self) -> dict[str, dict[str, Any]]:
        """What Ray says of the nodes of the cluster that have cores, by their ids."""
        return {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}

    def _begin(self, id_: str, name: str, cores: float) -> None:
        where = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(id_, soft=False)
        # No core of its own: what runs there are the programs, and Ray does not count those.
        actor = self._ray.remote(ray_host.Host).options(num_cpus=0, scheduling_strategy=where).remote()
        node = self._nodes[id_] = _Node(id_, name, cores, actor, time.monotonic())
        self._calls[actor.start.remote(self._settings)] = node

    def _started(self, node: _Node, said: dict[str, Any]) -> None:
        """Takes a node into use. Raises SandboxError where it is not fit for it."""
        if "error" in said:
            raise SandboxError(said["error"])
        if said["digest"] != self._digest:
            raise SandboxError("it has another version of spade_jax or of Python; install what runs here")
        node.layers = tuple(layers.LayerStatus(*status) for status in said["layers"])
        lacking = layers.missing(node.layers, self.required) if self.isolation == "best_effort" else ""
        if lacking:
            _log.warning("sandbox.isolation=best_effort: %s contains less than strict would: %s", node.name, lacking)
        node.ready = True
        self._alone_since = math.inf
        _log.info("sandbox node %s (%g cores): %s", node.name, node.cores, layers.describe(node.layers))
        self._place()

    def _lose(self, node: _Node, why: str) -> None:
        """Answers for a node's environments, and goes on without it."""
        del self._nodes[node.id]
        self._retry_at[node.id] = time.monotonic() + _RETRY_SECONDS
        self._calls = {call: of for call, of in self._calls.items() if of is not node}
        self._kill(node)
        error = f"the environment host {node.name} {why}"
        for env in sorted(node.envs):
            target = self._envs[env]
            target.node, target.failure = None, error
            for ticket, (_, asked) in target.owed.items():
                del self._tickets[ticket]
                self._answer(Reply(ticket, env, False, None, error, INFRASTRUCTURE, time.monotonic() - asked))
            target.owed.clear()
        self._live -= len(node.envs)
        if not self.nodes:
            self._alone_since = min(self._alone_since, time.monotonic())
        _log.warning("%s; %d environments were there, %d nodes are left", error, len(node.envs), len(self._nodes))
        self._place()

    def _kill(self, node: _Node) -> None:
        with contextlib.suppress(Exception):  # it is dead, or Ray is
            self._ray.kill(node.actor)

    def _give_up(self, node: _Node, why: str, starting: bool) -> None:
        """Loses a node.

        While the pool is `starting` that is an error, since nobody wants fewer from the beginning, but for a node that
        has left the cluster: Ray goes on listing one that died for some seconds.
        """
        if starting and node.id in self._offered():
            raise SandboxError(f"the environment host {node.name} {why}; mend it, or take it out of the cluster")
        self._lose(node, why)

    def _give_up_silent(self, starting: bool = False) -> None:
        """Parts with nodes that have said nothing for long. Raises SandboxError where none has come for as long."""
        now = time.monotonic()
        for node in list(self._nodes.values()):
            most = _SILENT_SECONDS if node.ready else _START_SECONDS
            if (node.calls or not node.ready) and now - node.heard > most:
                why = f"has said nothing for {most:g} s"
                self._give_up(node, why, starting)
        if now - self._alone_since > _ALONE_SECONDS:
            raise SandboxError(f"the Ray cluster has had no node for environments for {_ALONE_SECONDS:g} s")

    # --- the event loop --------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the sandbox pool is shut down; open a new one")

    def _place(self) -> None:
        """Gives waiting environments a place, each on the node with the fewest of them for a core."""
        ready = [node for node in self._nodes.values() if node.ready]
        while ready and self._waiting and self._live < self.max_live:
            env = self._waiting.popleft()
            node = min(ready, key=lambda node: (len(node.envs) + 1) / node.cores)
            target = self._envs[env]
            target.node = node
            node.envs.add(env)
            node.outgoing += target.frames
            target.frames.clear()
            self._live += 1

    def _wait(self, timeout: float | None, done: Callable[[], bool]) -> None:
        """Exchanges batches until `done()`, and once where that is so already."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            if time.monotonic() >= self._look_at:
                self._look_around()
            self._send()
            finished = done()
            if timeout is None and not finished and self._stuck():
                raise RuntimeError(
                    f"{self._live} sandbox environments are open and idle while more wait; "
                    f"close some, or raise max_live={self.max_live}"
                )
            left = 0.0 if finished else max(0.0, until - time.monotonic())
            self._receive(min(left, _LOOK_SECONDS))
            self._give_up_silent()
            if finished or left == 0.0 or done():
                return

    def _stuck(self) -> bool:
        """Whether only the caller, by closing an environment, can let a waiting one begin."""
        return self._live >= self.max_live and bool(self._waiting) and not any(
            self._envs[env].node for env in self._tickets.values()
        )

    def _send(self) -> None:
        """One batch to each node that has to be sent something, or owes something and is not listened to."""
        for node in self._nodes.values():
            if node.ready and (node.outgoing or (not node.calls and any(self._envs[env].owed for env in node.envs))):
                if not node.calls:
                    node.heard = time.monotonic()  # before that it was not asked
                call = node.actor.exchange.remote(node.batches, b"".join(node.outgoing))
                node.outgoing.clear()
                node.batches += 1
                node.calls += 1
                self._calls[call] = node

    def _receive(self, timeout: float, starting: bool = False) -> None:
        """Takes up what has come, after waiting up to `timeout` seconds for something to come.

        Raises SandboxError for a node that cannot be used where `starting`.
        """
        if not self._calls:
            time.sleep(timeout)
            return
        done, _ = self._ray.wait(list(self._calls), num_returns=1, timeout=timeout)
        while done:
            for call in done:
                if (node := self._calls.pop(call, None)) is not None:  # else it was lost a moment ago
                    self._take(node, call, starting)
            if not self._calls:
                return
            done, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)

    def _take(self, node: _Node, call: Any, starting: bool) -> None:
        """One answer of a node's actor."""
        try:
            answer = self._ray.get(call)
            if not node.ready:
                self._started(node, json.loads(answer))
        except SandboxError as error:
            why = f"cannot run the sandbox: {error}"
        except self._ray.exceptions.RayError as error:
            why = f"is lost: {_reason(error)}"
        else:
            node.heard = time.monotonic()
            if isinstance(answer, bytes):
                node.calls -= 1
                for ticket, result, value in ray_host.frames(answer):
                    self._replied(ticket, *result, value)
            return
        self._give_up(node, why, starting)

    def _replied(self, ticket: int, ok: bool, kind: str, error: str, seconds: float, value: Any) -> None:
        env = self._tickets.pop(ticket, None)
        if env is None:
            return  # it was closed in the meantime
        method, _ = self._envs[env].owed.pop(ticket)
        if ok:  # JSON knows no tuples
            value = wire.checked(method, value, self.limits.observation_chars)
        self._answer(Reply(ticket, env, ok, value, error, kind, seconds))

    def _answer(self, reply: Reply) -> None:
        self._ready.append(reply)


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise SandboxError(f"sandbox.hosts=ray needs the package ray ({error}); install spade_jax[ray]") from error
    return ray


def _reason(error: Exception) -> str:
    """Why a call failed, in one line: Ray's own messages are long."""
    cause = getattr(error, "cause", None)
    return wire.one_line(str(cause) if cause is not None else str(error))
