"""The pool: many untrusted programs, one single-threaded event loop.

Nothing here blocks on a child, believes a child or raises because of one. Every
ticket is answered once, by the program or by a reason why it cannot be; the one
exception is that closing an environment drops what it still owed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import heapq
import logging
import math
import os
import select
import socket
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from spade_jax.sandbox import layers, memory, wire
from spade_jax.sandbox.environment import Call, Environment
from spade_jax.sandbox.limits import DEFAULT_LIMITS, Limits
from spade_jax.sandbox.replies import (
    DIED,
    EXCEPTION,
    INFRASTRUCTURE,
    OK,
    PROTOCOL,
    TIMEOUT,
    Reply,
    SandboxError,
    cause_of_death,
)
from spade_jax.sandbox.server import START_SECONDS, ForkServer, raise_descriptor_limit

HASH_SEEDS = (0, 1)  # one fork server each: hashes are fixed when an interpreter starts

# From a fork request to a locked-down child. It takes milliseconds; a machine
# that needs this long is out of order, which is no fault of the program.
_SPAWN_SECONDS = 30.0
_REAP_SECONDS = 30.0  # from a child's end, or its killing, to the fork server's word of it
# A deadline that is seen this late passed unseen: the trainer was busy elsewhere, or all of its processes stood
# still (a suspended job, a paused container). It is then given once more, since the child may have stood still, too.
_UNSEEN_SECONDS = 5.0
_MAX_FAILED_STARTS = 3
_SAMPLE_SECONDS = 0.25  # between two counts of the children's memory
_SPIN_SECONDS = 5e-5  # about two wake-ups on another core
_SPIN_EVERY = 63  # waits without spinning, at most, between two attempts

_log = logging.getLogger(__name__)


class Pool:
    """Runs untrusted programs, each in a process of its own.

    Not safe to share between threads. Usable as a context manager.

    Attributes:
      limits: the limits of every child.
      isolation: strict, best_effort or none, a key of `layers.ISOLATION`.
      required: the layers without which `strict` does not start.
      max_live: processes at once; further environments wait for a place.
      memory_mb_total: memory of all children together, MiB.
      layers: which isolation layers this machine has, as probed at start.
    """

    def __init__(
        self,
        limits: Limits = DEFAULT_LIMITS,
        isolation: str = "strict",
        max_live: int = 512,
        *,
        required: Sequence[str] = layers.REQUIRED,
        memory_mb_total: int = 16_384,
        wanted: Sequence[str] | None = None,
    ) -> None:
        """Starts the fork servers and waits until they are warm (about 0.3 s).

        `wanted` names the layers to try, for measuring what each is good for; by
        default those of the isolation.

        Call it before JAX initialises its devices, so that every process of the
        sandbox is older than JAX's threads. (A fork server that has to be restarted
        later is a fresh interpreter too, so nothing inherits them then either.)

        Raises:
          ValueError: unknown isolation or layer, or a max_live that the machine cannot hold.
          SandboxError: this machine cannot run the sandbox, or lacks a required layer.
        """
        if isolation not in layers.ISOLATION:
            raise ValueError(f"sandbox isolation={isolation!r} is unknown; use one of {', '.join(layers.ISOLATION)}")
        for name in (*required, *(wanted or ())):
            if name not in layers.NAMES:
                raise ValueError(f"sandbox layer {name!r} is unknown; use some of {', '.join(layers.NAMES)}")
        if max_live < 1:
            raise ValueError(f"sandbox max_live={max_live} allows no environment; use at least 1")
        if problem := layers.supported():
            raise SandboxError(problem)
        raise_descriptor_limit(max_live)
        self.limits = limits
        self.isolation = isolation
        self.max_live = max_live
        self.required = tuple(required)
        self.memory_mb_total = memory_mb_total
        self._wanted = layers.ISOLATION[isolation] if wanted is None else tuple(wanted)
        self._warned = False
        self.layers: tuple[layers.LayerStatus, ...] = ()
        self._owner = os.getpid()
        self._epoll = select.epoll()
        self._handlers: dict[int, Environment | ForkServer] = {}
        self._envs: dict[int, Environment] = {}  # open for the caller
        self._processes: dict[int, Environment] = {}  # forked, or asked for, and not reaped
        self._servers = {seed: ForkServer(seed) for seed in HASH_SEEDS}
        self._alarms: list[tuple[float, int]] = []  # heap of (time, env id); see _set_deadline
        self._start_by = math.inf  # the earliest start_by of the servers
        self._sample_at = 0.0  # when the children's memory is next counted
        self._looked = 0.0  # when the sockets were last looked at
        self._spin_every = 0  # waits that do not spin between two that do; see _events
        self._spins_skipped = 0
        self._heard = 0.0  # what is being handled arrived then, or later
        self._ready: collections.deque[Reply] = collections.deque()
        self._outstanding = 0
        self._next_env = 0
        self._next_ticket = 0
        self._closed = False
        try:
            for server in self._servers.values():
                self._start(server)
            while not all(server.ready for server in self._servers.values()):
                self._pump(math.inf)
        except BaseException:
            self.shutdown()
            raise

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def fileno(self) -> int:
        """A descriptor that is readable when `poll` has something to take up.

        For event loops, which have to call `poll` from time to time as well: deadlines pass in silence.
        """
        return self._epoll.fileno()

    @property
    def live(self) -> int:
        """Processes that exist or have been asked for, those being reaped included."""
        return len(self._processes)

    def open(self, source: str, class_name: str, *, hash_seed: int = 0) -> int:
        """Forks a child for the program; returns the environment's id at once.

        Beyond `max_live` the environment waits until another is closed. Nothing of
        the program runs before `construct` is requested.
        """
        self._check_open()
        if hash_seed not in self._servers:
            raise ValueError(f"sandbox hash_seed={hash_seed} has no fork server; use one of {HASH_SEEDS}")
        env = Environment(self._next_env, hash_seed, self.limits)
        self._next_env += 1
        env.outgoing += wire.encode([wire.READY_SEQ, source, class_name])
        self._envs[env.id] = env
        self._servers[hash_seed].waiting.append(env)
        self._spawn_waiting()
        return env.id

    def request(self, env: int, method: str, *args: Any, seconds: float | None = None) -> int:
        """Asks for a call; returns the ticket that its reply will carry.

        Methods: construct(), reset(seed), step(action), solution(), secrets(), close().
        Requests to one environment are answered in order; each one's deadline
        (`seconds`, else the limits' own) begins when it is its turn.

        Raises:
          ValueError: unknown method or environment (a closed one answers "died"),
            or an argument that is a NaN.
          TypeError: an argument that JSON cannot hold.
        """
        self._check_open()
        if method not in wire.METHODS:
            raise ValueError(f"sandbox method {method!r} is unknown; use one of {', '.join(wire.METHODS)}")
        if not 0 <= env < self._next_env:
            raise ValueError(f"sandbox environment {env} was never opened")
        target = self._envs.get(env)
        seq = wire.READY_SEQ if target is None else target.seq + 1
        frame = wire.encode([seq, method, args])
        ticket = self._next_ticket
        self._next_ticket += 1
        self._outstanding += 1
        failure = (DIED, "the environment is closed") if target is None else target.failure
        if target is None or failure is not None:
            self._answer(Reply(ticket, env, False, None, failure[1], failure[0], 0.0))
            return ticket
        target.seq = seq
        call = Call(ticket, seq, method, self.limits.seconds(method) if seconds is None else seconds)
        target.pending.append(call)
        if target.ready and len(target.pending) == 1:
            self._begin(target, call)
        self._send(target, frame)
        return ticket

    def poll(self, timeout: float | None = 0.0) -> list[Reply]:
        """Replies that have arrived, oldest first.

        Waits up to `timeout` seconds for the first one (None: without limit), but
        not when nothing is outstanding.
        """
        self._check_open()
        self._wait(timeout, lambda: bool(self._ready) or not self._outstanding)
        replies = list(self._ready)
        self._ready.clear()
        return replies

    def call(self, env: int, method: str, *args: Any, seconds: float | None = None) -> Reply:
        """`request`, then waits for its reply; other replies are kept for `poll`."""
        ticket = self.request(env, method, *args, seconds=seconds)
        seen = 0
        found: Reply | None = None

        def arrived() -> bool:
            nonlocal seen, found
            while seen < len(self._ready):
                if self._ready[seen].ticket == ticket:
                    found = self._ready[seen]
                    del self._ready[seen]
                    return True
                seen += 1
            return False

        if not arrived():
            self._wait(None, arrived)
        assert found is not None
        return found

    def close(self, env: int) -> None:
        """Kills the environment's child and forgets its outstanding replies.

        Returns at once; the child is reaped by its fork server. Closing twice, or
        after a failure, is fine.
        """
        self._check_open()
        target = self._envs.pop(env, None)
        if target is None:
            return
        if any(reply.env == env for reply in self._ready):
            self._ready = collections.deque(reply for reply in self._ready if reply.env != env)
        self._outstanding -= len(target.pending)
        target.pending.clear()
        if env not in self._processes:
            with contextlib.suppress(ValueError):  # reaped already, or never forked
                self._servers[target.hash_seed].waiting.remove(target)
        target.kill()
        self._disconnect(target)

    def shutdown(self) -> None:
        """Ends every process of the pool; idempotent."""
        # A fork of the trainer (a data loader's, say) must not end its parent's children.
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        for server in self._servers.values():
            if server.control is not None:
                server.control.close()  # the fork server kills and reaps its children, then ends
        for server in self._servers.values():
            if server.process is not None:
                server.reap()
        for env in {**self._processes, **self._envs}.values():
            if env.socket is not None:
                env.socket.close()
            if env.pidfd >= 0:
                os.close(env.pidfd)
        self._handlers.clear()
        self._epoll.close()

    # --- the event loop ----------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the sandbox pool is shut down; open a new one")

    def _wait(self, timeout: float | None, done: Callable[[], bool]) -> None:
        """Pumps until `done()`, and once where that is so already."""
        until = math.inf if timeout is None else time.monotonic() + timeout
        finished = done()
        while True:
            if timeout is None and not finished and self._stuck():
                self._pump(0.0)  # what has happened unseen may have made a place
                if self._stuck():
                    raise RuntimeError(
                        f"{len(self._processes)} sandbox environments are open and idle while more wait; "
                        f"close some, or raise max_live={self.max_live}"
                    )
            left = 0.0 if finished else max(0.0, until - time.monotonic())
            self._pump(left)
            if finished or left == 0.0:
                return
            finished = done()
            if finished:
                return

    def _stuck(self) -> bool:
        """Whether only the caller, by closing an environment, can let a waiting one begin."""
        if len(self._processes) < self.max_live or not any(server.waiting for server in self._servers.values()):
            return False
        return not any(e.pending or not e.ready or e.doomed for e in self._processes.values())

    def _pump(self, timeout: float) -> None:
        """Handles what has happened, after waiting up to `timeout` seconds for something to."""
        wait = timeout
        if wait > 0.0:
            alarm = self._alarms[0][0] if self._alarms else math.inf
            sample = self._sample_at if self._processes else math.inf
            wait = min(wait, max(0.0, min(alarm, sample, self._start_by) - time.monotonic()))
        began = time.monotonic()
        events = self._events(wait, began)
        now = time.monotonic()
        # What was there at once has come at some time since the last look.
        self._heard = now if now - began > 1e-3 else self._looked
        self._looked = now
        for fd, event in events:
            # An earlier event of this batch may have closed the descriptor, and
            # reopened it for another child: so handlers read, and trust no flag.
            handler = self._handlers.get(fd)
            if isinstance(handler, Environment):
                if event & select.EPOLLOUT:
                    self._flush(handler)
                if event & ~select.EPOLLOUT:
                    self._read(handler)
            elif isinstance(handler, ForkServer):
                self._listen(handler)
        self._expire()
        self._count_memory()
        self._spawn_waiting()

    def _events(self, wait: float, now: float) -> list[tuple[int, int]]:
        """What the sockets have to say, after up to `wait` seconds.

        To be woken up on another core costs more than a step does, so that a short wait
        looks again and again instead: as long as that catches something. Where it does
        not (the child needs this core, or its program takes longer), it is tried rarely.
        """
        events = self._epoll.poll(0)
        if events or wait == 0.0:
            return events
        if self._spins_skipped < self._spin_every:
            self._spins_skipped += 1
        else:
            self._spins_skipped = 0
            until = now + min(wait, _SPIN_SECONDS)
            while time.monotonic() < until:
                if events := self._epoll.poll(0):
                    self._spin_every = 0
                    return events
            self._spin_every = min(2 * self._spin_every + 1, _SPIN_EVERY)
        return self._epoll.poll(None if wait == math.inf else wait)

    def _expire(self) -> None:
        now = time.monotonic()
        while self._start_by <= now:
            late = next(server for server in self._servers.values() if server.start_by <= now)
            self._listen(late)  # its word may lie in the socket, if the trainer was stopped
            if late.start_by <= now:
                self._server_died(late, f"was not ready after {START_SECONDS:g} s")
        while self._alarms and self._alarms[0][0] <= now:
            when, env_id = heapq.heappop(self._alarms)
            env = self._processes.get(env_id)
            if env is None or env.alarm != when:
                continue
            env.alarm = math.inf
            if env.deadline > now:
                self._set_deadline(env, env.deadline)
                continue
            unseen = now - env.deadline > _UNSEEN_SECONDS and not env.extended
            env.deadline = math.inf
            # The answer may lie in a socket, if the trainer was busy elsewhere.
            self._drain(env)
            if env.doomed or not env.ready:
                self._listen(self._servers[env.hash_seed])
            if env.id not in self._processes or env.deadline != math.inf:
                continue
            if unseen:
                self._give(env, env.seconds)
                env.extended = True
            elif env.doomed:
                self._server_died(
                    self._servers[env.hash_seed], f"did not report the end of a child for {_REAP_SECONDS:g} s"
                )
            elif env.ready:
                if env.pending:
                    call = env.pending[0]
                    what, most = call.method, call.seconds
                    if call.of_episode:
                        what, most = "the calls of the episode together", self.limits.episode_seconds
                    self._fail(env, TIMEOUT, f"{what} took longer than {most:g} s")
            elif env.pidfd >= 0:
                self._fail(env, INFRASTRUCTURE, f"the child was not locked down after {_SPAWN_SECONDS:g} s")
            else:
                self._server_died(self._servers[env.hash_seed], f"did not fork for {_SPAWN_SECONDS:g} s")

    def _give(self, env: Environment, seconds: float) -> None:
        """Gives an environment this long for what it has to do next."""
        env.seconds, env.extended = seconds, False
        self._set_deadline(env, time.monotonic() + seconds)

    def _set_deadline(self, env: Environment, when: float) -> None:
        """Moves an environment's deadline.

        One alarm an environment: it need only ring no later than the deadline, and is
        set anew when it rings early. So a step costs no work on the heap.
        """
        env.deadline = when
        if when < env.alarm:
            env.alarm = when
            heapq.heappush(self._alarms, (when, env.id))

    def _begin(self, env: Environment, call: Call) -> None:
        if call.method == "reset":
            env.episode_left = self.limits.episode_seconds
        call.began = time.monotonic()
        call.of_episode = env.episode_left < call.seconds
        self._give(env, min(call.seconds, env.episode_left))

    def _answer(self, reply: Reply) -> None:
        self._outstanding -= 1
        self._ready.append(reply)

    # --- children ------------------------------------------------------------------

    def _spawn_waiting(self) -> None:
        for server in self._servers.values():
            while server.waiting and server.takes_more and len(self._processes) < self.max_live:
                self._spawn(server, server.waiting.popleft())

    def _spawn(self, server: ForkServer, env: Environment) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            env.socket = ours
            self._processes[env.id] = env
            self._give(env, _SPAWN_SECONDS)
            self._handlers[ours.fileno()] = env
            self._epoll.register(ours, select.EPOLLIN)
            server.ask(env.id, theirs)
        self._flush(env)

    def _send(self, env: Environment, frame: bytes) -> None:
        if env.send(frame):
            self._epoll.modify(env.socket, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, env: Environment) -> None:
        pending = bytes(env.outgoing)
        env.outgoing.clear()
        if env.socket is not None:
            self._epoll.modify(env.socket, select.EPOLLIN)
            self._send(env, pending)

    def _drain(self, env: Environment) -> None:
        """Takes all that the child has sent.

        Bounded whatever the child does: it can fill one frame, and a second one is
        a protocol fault unless it was asked for.
        """
        while env.socket is not None and self._read(env):
            pass

    def _read(self, env: Environment) -> bool:
        """Takes one read's worth; whether there may be more."""
        if env.socket is None:
            return False
        data = env.receive()
        if data is None:
            return False
        if not data:
            # Its exit status, which the fork server reports, will say why.
            env.kill()
            self._disconnect(env)
            return False
        env.reader.feed(data)
        try:
            while env.socket is not None and (message := env.reader.next()) is not None:
                self._take(env, message)
        except wire.ProtocolError as error:
            self._fail(env, PROTOCOL, str(error))
            return False
        return True

    def _take(self, env: Environment, message: list[Any]) -> None:
        """One frame of a child. Raises ProtocolError."""
        seq, ok, value = message
        if not env.ready:
            if ok is not True:  # our own code speaks here, the program has not run
                self._fail(env, INFRASTRUCTURE, f"the child was not locked down: {value}")
                return
            env.ready = True
            env.deadline = math.inf
            if env.pending:
                self._begin(env, env.pending[0])
            return
        if not env.pending:
            raise wire.ProtocolError("a reply that nothing asked for")
        call = env.pending[0]
        if type(seq) is not int or seq != call.seq:
            raise wire.ProtocolError("a reply with a wrong sequence number")
        if ok is True:
            try:
                value, error, kind = wire.checked(call.method, value, self.limits.observation_chars), "", OK
            except wire.ContractError as broken:
                # An honest child would have said so itself, in an error reply.
                raise wire.ProtocolError(f"forged reply: {broken}") from None
        elif ok is False and type(value) is str:
            value, error, kind = None, wire.one_line(value) or "an error without a name", EXCEPTION
        else:
            raise wire.ProtocolError("a reply that is neither a value nor an error")
        env.pending.popleft()
        now = time.monotonic()
        # More than its deadline it has not worked: then the trainer stood still.
        env.episode_left -= min(max(0.0, self._heard - call.began), env.seconds)
        self._answer(Reply(call.ticket, env.id, kind == OK, value, error, kind, now - call.began))
        env.deadline = math.inf
        if env.pending:
            self._begin(env, env.pending[0])

    def _fail(self, env: Environment, kind: str, error: str) -> None:
        """Ends an environment for good: every call it owes gets this answer."""
        env.failure = (kind, error)
        now = time.monotonic()
        while env.pending:
            call = env.pending.popleft()
            seconds = 0.0 if math.isnan(call.began) else now - call.began
            self._answer(Reply(call.ticket, env.id, False, None, error, kind, seconds))
        env.kill()
        self._disconnect(env)

    def _disconnect(self, env: Environment) -> None:
        env.deadline = math.inf
        if env.id in self._processes:
            self._give(env, _REAP_SECONDS)
        env.outgoing.clear()
        if env.socket is not None:
            del self._handlers[env.socket.fileno()]
            self._epoll.unregister(env.socket)
            env.socket.close()
            env.socket = None

    def _reaped(self, env: Environment) -> None:
        del self._processes[env.id]
        env.forget_process()

    def _count_memory(self) -> None:
        """Ends the biggest child where all of them together hold more than the budget."""
        if not self._processes or self._looked < self._sample_at:
            return
        self._sample_at = self._looked + _SAMPLE_SECONDS
        held = {
            env.id: memory.charged_bytes(env.pid, self._servers[env.hash_seed].file_bytes)
            for env in self._processes.values()
            if env.pid and not env.doomed
        }
        for env_id in memory.beyond(held, self.memory_mb_total * 2**20):
            error = f"all together held more than memory_mb_total={self.memory_mb_total} MiB, and this one the most"
            # It kept to its own limit, so that the program is not to blame.
            self._fail(self._processes[env_id], INFRASTRUCTURE, f"{error} ({held[env_id] // 2**20} MiB)")

    # --- fork servers ----------------------------------------------------------------

    def _start(self, server: ForkServer) -> None:
        try:
            control = server.start(self.limits, self._wanted, self.max_live)
        except OSError as error:
            remedy = "raise the limits on processes, memory and descriptors (ulimit -u, -v, -n)"
            if error.errno in (errno.EACCES, errno.ENOENT):
                remedy = f"this user must be able to run {sys.executable}"
            raise SandboxError(f"the sandbox cannot start a fork server: {error.strerror}; {remedy}") from error
        self._update_start_by()
        self._handlers[control.fileno()] = server
        self._epoll.register(control, select.EPOLLIN)

    def _update_start_by(self) -> None:
        self._start_by = min(server.start_by for server in self._servers.values())

    def _listen(self, server: ForkServer) -> None:
        for packet in server.packets():
            if packet is None:
                self._server_died(server, "ended", hangs=False)
                return
            message, fd = packet
            event = message["event"]
            if event == "ready":
                self._server_ready(server, message["layers"], fd)
                continue
            env = self._processes[message["env"]]
            if event == "spawned":
                server.spawning -= 1
                env.pidfd = fd
                with contextlib.suppress(OSError):  # no /proc: the layer accounting says so
                    env.pid = memory.host_pid(fd)
                if env.doomed:
                    env.kill()
            elif event == "failed":
                server.spawning -= 1
                self._fail(env, INFRASTRUCTURE, f"no child: {message['error']}")
                self._reaped(env)
            else:
                self._child_exited(env, message["code"], message["status"])

    def _child_exited(self, env: Environment, code: int, status: int) -> None:
        self._drain(env)  # what it answered before its end counts
        if env.failure is None:
            kind, error = cause_of_death(code, status, self.limits)
            if not env.ready:
                kind, error = INFRASTRUCTURE, f"the child failed before the program ran: {error}"
            self._fail(env, kind, error)
        self._reaped(env)

    def _server_ready(self, server: ForkServer, found: list[list[Any]], pidfd: int) -> None:
        statuses = [layers.LayerStatus(*status) for status in found]
        try:
            server.file_bytes = memory.file_bytes(memory.host_pid(pidfd))
        except OSError as error:
            if memory.ended(pidfd):  # killed as soon as it had started: its end is answered when it is heard of
                return
            unseen = f"the trainer cannot see its children's memory: {error}"
            statuses = [
                dataclasses.replace(s, active=False, evidence=unseen) if s.name == "accounting" else s for s in statuses
            ]
        finally:
            os.close(pidfd)
        server.ready = True
        server.start_by = math.inf
        self._update_start_by()
        server.failed_starts = 0
        lacking = layers.missing(statuses, self.required) if self.isolation != "none" else ""
        if lacking and self.isolation == "strict":
            raise SandboxError(
                f"sandbox.isolation=strict cannot start: {lacking}; or set sandbox.isolation=best_effort"
            )
        if tuple(statuses) != self.layers:
            self.layers = tuple(statuses)
            _log.info("sandbox layers (%s): %s", self.isolation, layers.describe(statuses))
        if lacking and not self._warned:
            self._warned = True
            _log.warning("sandbox.isolation=best_effort contains programs less than strict would: %s", lacking)

    def _server_died(self, server: ForkServer, how: str, hangs: bool = True) -> None:
        """Answers for the children of a dead fork server and starts another."""
        assert server.control is not None
        del self._handlers[server.control.fileno()]
        self._epoll.unregister(server.control)
        was_ready = server.ready
        error = f"the fork server {how}{server.stop(hangs)}"
        self._update_start_by()
        for env in [e for e in self._processes.values() if e.hash_seed == server.hash_seed]:
            self._fail(env, INFRASTRUCTURE, error)
            self._reaped(env)
        server.failed_starts += not was_ready
        if server.failed_starts >= (_MAX_FAILED_STARTS if self.layers else 1):
            raise SandboxError(f"the sandbox cannot start a fork server: {error}")
        _log.warning("%s; starting another", error)
        self._start(server)
