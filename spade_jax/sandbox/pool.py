"""The pool: many untrusted programs, one single-threaded event loop.

Nothing here blocks on a child, believes a child or raises because of one. Every
ticket is answered once, by the program or by a reason why it cannot be; the one
exception is that closing an environment drops what it still owed.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import heapq
import json
import logging
import math
import os
import resource
import select
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Any

from spade_jax.sandbox import layers, wire, zygote
from spade_jax.sandbox.limits import DEFAULT_LIMITS, Limits

HASH_SEEDS = (0, 1)  # one fork server each: hashes are fixed when an interpreter starts

# Kinds of reply. All but the first two are final: the child is gone.
OK = "ok"
EXCEPTION = "exception"  # the program raised, or broke the contract
TIMEOUT = "timeout"  # wall time of a call, or CPU time of the child
DIED = "died"
PROTOCOL = "protocol"  # bytes that no honest child sends
INFRASTRUCTURE = "infrastructure"  # not the program's doing: never a reward or a penalty

_READ_BYTES = 65_536
_PACKET_BYTES = 4096
# Fork requests under way at once: bounds the descriptors in flight on the socket,
# and lets a send on the control socket never block.
_SPAWN_WINDOW = 64
# From a fork request to a locked-down child. It takes milliseconds; a machine
# that needs this long is out of order, which is no fault of the program.
_SPAWN_SECONDS = 30.0
_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_MAX_FAILED_STARTS = 3
_SPARE_DESCRIPTORS = 256  # what the rest of the trainer may hold

_log = logging.getLogger(__name__)


class SandboxError(RuntimeError):
    """The pool itself cannot work on this machine."""


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """The answer to one ticket.

    Attributes:
      ticket: what `request` returned.
      env: the environment's id.
      ok: whether the program answered within the contract.
      value: reset -> (str, dict); step -> (str, float, bool, bool, dict);
        solution, secrets -> list of str; else, and where not ok, None.
        A reward is finite, not necessarily in [0, 1].
      error: one line, "" if ok.
      kind: "ok", "exception" (the environment may go on), or final: "timeout",
        "died", "protocol", "infrastructure".
      seconds: wall time from when the child could begin until the answer.
    """

    ticket: int
    env: int
    ok: bool
    value: Any
    error: str
    kind: str
    seconds: float


class _Call:
    """A request that has not been answered."""

    __slots__ = ("began", "method", "seconds", "seq", "ticket")

    def __init__(self, ticket: int, seq: int, method: str, seconds: float) -> None:
        self.ticket = ticket
        self.seq = seq
        self.method = method
        self.seconds = seconds
        self.began = math.nan  # set once the child is ready and all earlier calls are answered


class _Env:
    """One environment, from `open` until its child is reaped and the caller closed it."""

    def __init__(self, env: int, hash_seed: int, frame_bytes: int) -> None:
        self.id = env
        self.hash_seed = hash_seed
        self.socket: socket.socket | None = None
        self.pidfd = -1
        self.pid = 0
        self.reader = wire.FrameReader(frame_bytes)
        self.outgoing = bytearray()  # what the child's socket would not take yet
        self.pending: collections.deque[_Call] = collections.deque()
        self.seq = wire.READY_SEQ
        self.ready = False
        self.doomed = False  # to be killed as soon as there is a pidfd
        self.deadline = math.inf
        self.alarm = math.inf  # its live entry in the pool's heap
        self.failure: tuple[str, str] | None = None  # (kind, error), final


class _Server:
    """One fork server as the pool sees it."""

    def __init__(self, hash_seed: int) -> None:
        self.hash_seed = hash_seed
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.ready = False
        self.start_by = math.inf
        self.failed_starts = 0
        self.waiting: collections.deque[_Env] = collections.deque()  # not forked yet
        self.spawning = 0


class Pool:
    """Runs untrusted programs, each in a process of its own.

    Not safe to share between threads. Usable as a context manager.

    Attributes:
      limits: the limits of every child.
      isolation: name of the set of layers, a key of `layers.ISOLATION`.
      max_live: processes at once; further environments wait for a place.
      layers: which isolation layers this machine has, as probed at start.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS, isolation: str = "limits", max_live: int = 512) -> None:
        """Starts the fork servers and waits until they are warm (about 0.3 s).

        Call it before JAX initialises its devices, so that every process of the
        sandbox is older than JAX's threads. (A fork server that has to be restarted
        later is a fresh interpreter too, so nothing inherits them then either.)

        Raises:
          ValueError: unknown isolation, or a max_live that the machine cannot hold.
          SandboxError: this machine cannot run the sandbox.
        """
        if isolation not in layers.ISOLATION:
            raise ValueError(f"sandbox isolation={isolation!r} is unknown; use one of {', '.join(layers.ISOLATION)}")
        if max_live < 1:
            raise ValueError(f"sandbox max_live={max_live} allows no environment; use at least 1")
        if problem := layers.supported():
            raise SandboxError(problem)
        _raise_descriptor_limit(max_live)
        self.limits = limits
        self.isolation = isolation
        self.max_live = max_live
        self.layers: tuple[layers.LayerStatus, ...] = ()
        self._owner = os.getpid()
        self._epoll = select.epoll()
        self._handlers: dict[int, _Env | _Server] = {}
        self._envs: dict[int, _Env] = {}  # open for the caller
        self._processes: dict[int, _Env] = {}  # forked, or asked for, and not reaped
        self._servers = {seed: _Server(seed) for seed in HASH_SEEDS}
        self._alarms: list[tuple[float, int]] = []  # heap of (time, env id); see _set_deadline
        self._start_by = math.inf  # the earliest start_by of the servers
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
        env = _Env(self._next_env, hash_seed, self.limits.frame_bytes)
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
        call = _Call(ticket, seq, method, self.limits.seconds(method) if seconds is None else seconds)
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
        self._kill(target)
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
                _end_process(server.process)
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
            wait = min(wait, max(0.0, min(alarm, self._start_by) - time.monotonic()))
        for fd, event in self._epoll.poll(None if wait == math.inf else wait):
            # An earlier event of this batch may have closed the descriptor, and
            # reopened it for another child: so handlers read, and trust no flag.
            handler = self._handlers.get(fd)
            if isinstance(handler, _Env):
                if event & select.EPOLLOUT:
                    self._flush(handler)
                if event & ~select.EPOLLOUT:
                    self._read(handler)
            elif isinstance(handler, _Server):
                self._listen(handler)
        self._expire()
        self._spawn_waiting()

    def _expire(self) -> None:
        now = time.monotonic()
        while self._start_by <= now:
            late = next(server for server in self._servers.values() if server.start_by <= now)
            self._server_died(late, f"was not ready after {_START_SECONDS:g} s")
        while self._alarms and self._alarms[0][0] <= now:
            when, env_id = heapq.heappop(self._alarms)
            env = self._processes.get(env_id)
            if env is None or env.alarm != when:
                continue
            env.alarm = math.inf
            if env.deadline > now:
                self._set_deadline(env, env.deadline)
                continue
            env.deadline = math.inf
            # The answer may lie in the socket, if the trainer was busy elsewhere.
            self._drain(env)
            if env.socket is None or env.deadline != math.inf:
                continue
            if env.ready:
                if env.pending:
                    call = env.pending[0]
                    self._fail(env, TIMEOUT, f"{call.method} took longer than {call.seconds:g} s")
            elif env.pidfd >= 0:
                self._fail(env, INFRASTRUCTURE, f"the child was not locked down after {_SPAWN_SECONDS:g} s")
            else:
                self._server_died(self._servers[env.hash_seed], f"did not fork for {_SPAWN_SECONDS:g} s")

    def _set_deadline(self, env: _Env, when: float) -> None:
        """Moves an environment's deadline.

        One alarm an environment: it need only ring no later than the deadline, and is
        set anew when it rings early. So a step costs no work on the heap.
        """
        env.deadline = when
        if when < env.alarm:
            env.alarm = when
            heapq.heappush(self._alarms, (when, env.id))

    def _begin(self, env: _Env, call: _Call) -> None:
        call.began = time.monotonic()
        self._set_deadline(env, call.began + call.seconds)

    def _answer(self, reply: Reply) -> None:
        self._outstanding -= 1
        self._ready.append(reply)

    # --- children ------------------------------------------------------------------

    def _spawn_waiting(self) -> None:
        for server in self._servers.values():
            while (
                server.ready
                and server.waiting
                and server.spawning < _SPAWN_WINDOW
                and len(self._processes) < self.max_live
            ):
                self._spawn(server, server.waiting.popleft())

    def _spawn(self, server: _Server, env: _Env) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            ours.setblocking(False)
            env.socket = ours
            self._processes[env.id] = env
            server.spawning += 1
            self._set_deadline(env, time.monotonic() + _SPAWN_SECONDS)
            self._handlers[ours.fileno()] = env
            self._epoll.register(ours, select.EPOLLIN)
            try:
                socket.send_fds(server.control, [json.dumps({"env": env.id}).encode()], [theirs.fileno()])
            except OSError:
                return  # it has died; the end of the control socket will tell
        self._flush(env)

    def _send(self, env: _Env, frame: bytes) -> None:
        if env.socket is None or env.outgoing:
            env.outgoing += frame
            return
        try:
            sent = env.socket.send(frame, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            return  # the child has closed its end; reading will tell
        if sent < len(frame):
            env.outgoing += frame[sent:]
            self._epoll.modify(env.socket, select.EPOLLIN | select.EPOLLOUT)

    def _flush(self, env: _Env) -> None:
        pending = bytes(env.outgoing)
        env.outgoing.clear()
        if env.socket is not None:
            self._epoll.modify(env.socket, select.EPOLLIN)
            self._send(env, pending)

    def _drain(self, env: _Env) -> None:
        """Takes all that the child has sent.

        Bounded whatever the child does: it can fill one frame, and a second one is
        a protocol fault unless it was asked for.
        """
        while env.socket is not None and self._read(env):
            pass

    def _read(self, env: _Env) -> bool:
        """Takes one read's worth; whether there may be more."""
        if env.socket is None:
            return False
        try:
            data = env.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            # Its exit status, which the fork server reports, will say why.
            self._kill(env)
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

    def _take(self, env: _Env, message: list[Any]) -> None:
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
        self._answer(Reply(call.ticket, env.id, kind == OK, value, error, kind, now - call.began))
        env.deadline = math.inf
        if env.pending:
            self._begin(env, env.pending[0])

    def _fail(self, env: _Env, kind: str, error: str) -> None:
        """Ends an environment for good: every call it owes gets this answer."""
        env.failure = (kind, error)
        now = time.monotonic()
        while env.pending:
            call = env.pending.popleft()
            seconds = 0.0 if math.isnan(call.began) else now - call.began
            self._answer(Reply(call.ticket, env.id, False, None, error, kind, seconds))
        self._kill(env)
        self._disconnect(env)

    def _kill(self, env: _Env) -> None:
        if env.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(env.pidfd, signal.SIGKILL)
        env.doomed = True

    def _disconnect(self, env: _Env) -> None:
        env.deadline = math.inf
        env.outgoing.clear()
        if env.socket is not None:
            del self._handlers[env.socket.fileno()]
            self._epoll.unregister(env.socket)
            env.socket.close()
            env.socket = None

    def _reaped(self, env: _Env) -> None:
        """The process is gone, or never was."""
        del self._processes[env.id]
        if env.pidfd >= 0:
            os.close(env.pidfd)
            env.pidfd = -1

    # --- fork servers ----------------------------------------------------------------

    def _start(self, server: _Server) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            server.process = subprocess.Popen(
                zygote.command(theirs.fileno(), self.limits, self.isolation, self.max_live),
                env=zygote.environment(server.hash_seed),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                # Ctrl-C reaches the trainer alone, which then shuts the pool down.
                start_new_session=True,
            )
        ours.setblocking(False)
        server.control = ours
        server.ready = False
        server.spawning = 0
        self._set_start_by(server, time.monotonic() + _START_SECONDS)
        self._handlers[ours.fileno()] = server
        self._epoll.register(ours, select.EPOLLIN)

    def _set_start_by(self, server: _Server, when: float) -> None:
        server.start_by = when
        self._start_by = min(other.start_by for other in self._servers.values())

    def _listen(self, server: _Server) -> None:
        """Takes all packets of a fork server. It is trusted; only its death is provided for."""
        while server.control is not None:
            try:
                packet, fds, _, _ = socket.recv_fds(server.control, _PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if not packet:
                self._server_died(server, "ended")
                return
            message = json.loads(packet)
            event = message["event"]
            if event == "ready":
                self._server_ready(server, message["layers"])
                continue
            env = self._processes[message["env"]]
            if event == "spawned":
                server.spawning -= 1
                (env.pidfd,) = fds
                env.pid = message["pid"]
                if env.doomed:
                    self._kill(env)
            elif event == "failed":
                server.spawning -= 1
                self._fail(env, INFRASTRUCTURE, f"no child: {message['error']}")
                self._reaped(env)
            else:
                self._child_exited(env, message["code"], message["status"])

    def _child_exited(self, env: _Env, code: int, status: int) -> None:
        self._drain(env)  # what it answered before its end counts
        if env.failure is None:
            kind, error = _cause(code, status, self.limits)
            if not env.ready:
                kind, error = INFRASTRUCTURE, f"the child failed before the program ran: {error}"
            self._fail(env, kind, error)
        self._reaped(env)

    def _server_ready(self, server: _Server, found: list[list[Any]]) -> None:
        server.ready = True
        self._set_start_by(server, math.inf)
        server.failed_starts = 0
        statuses = tuple(layers.LayerStatus(*status) for status in found)
        if statuses != self.layers:
            self.layers = statuses
            level = logging.INFO if all(status.active for status in statuses) else logging.WARNING
            _log.log(level, "sandbox layers: %s", layers.describe(statuses))

    def _server_died(self, server: _Server, how: str) -> None:
        """Answers for the children of a dead fork server and starts another."""
        process, control = server.process, server.control
        assert process is not None and control is not None
        del self._handlers[control.fileno()]
        self._epoll.unregister(control)
        control.close()
        server.control = None
        self._set_start_by(server, math.inf)
        was_ready, server.ready = server.ready, False
        process.kill()  # for one that hangs; harmless after its end
        error = f"the fork server {how}{_end_process(process)}"
        for env in [e for e in self._processes.values() if e.hash_seed == server.hash_seed]:
            self._fail(env, INFRASTRUCTURE, error)
            self._reaped(env)
        server.failed_starts += not was_ready
        if server.failed_starts >= (_MAX_FAILED_STARTS if self.layers else 1):
            raise SandboxError(f"the sandbox cannot start a fork server: {error}")
        _log.warning("%s; starting another", error)
        self._start(server)


def _cause(code: int, status: int, limits: Limits) -> tuple[str, str]:
    """Kind and error for a child's end, from waitid's si_code and si_status."""
    if code == os.CLD_EXITED:
        return DIED, f"the child exited with status {status}"
    if status == signal.SIGXCPU:
        return TIMEOUT, f"the child used more than {limits.cpu_seconds} s of CPU time"
    try:
        name = signal.Signals(status).name
    except ValueError:
        name = f"signal {status}"
    return DIED, f"the child was ended by {name}, or closed its connection"


def _end_process(process: subprocess.Popen[bytes]) -> str:
    """Reaps a fork server that is about to end; returns its last words."""
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stderr is not None
    with process.stderr as pipe:
        os.set_blocking(pipe.fileno(), False)  # a dying child may still hold the other end
        lines = (pipe.read() or b"").decode("utf-8", "replace").strip().splitlines()
    status = f" (status {process.returncode})"
    return f"{status}: {wire.one_line(lines[-1])}" if lines else status


def _raise_descriptor_limit(max_live: int) -> None:
    """Makes room for a socket and a pidfd for each child."""
    needed = 2 * max_live + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        fitting = (hard - _SPARE_DESCRIPTORS) // 2
        raise ValueError(
            f"sandbox max_live={max_live} needs {needed} descriptors and the hard limit is {hard}; "
            f"use at most {fitting}, or raise it (ulimit -Hn)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
