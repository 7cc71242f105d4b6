"""A fork server as the pool sees it: started, spoken to and ended."""

from __future__ import annotations

import collections
import json
import math
import os
import resource
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

from spade_jax.sandbox import wire, zygote
from spade_jax.sandbox.environment import Environment
from spade_jax.sandbox.limits import Limits

START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_PACKET_BYTES = 4096
# Fork requests under way at once: bounds the descriptors in flight on the socket,
# and lets a send on the control socket never block.
_SPAWN_WINDOW = 64
_SPARE_DESCRIPTORS = 256  # what the rest of the trainer may hold


class ForkServer:
    """One fork server, through all its restarts.

    Attributes:
      hash_seed: of its interpreter.
      process: the process that was started, None once it is reaped; the one that forks may be its child.
      control: the control socket, None once the server is known to have ended.
      ready: it forks on request.
      start_by: when a start is late.
      failed_starts: in a row.
      waiting: environments that have not been forked yet.
      spawning: fork requests that have not been answered.
      file_bytes: memory that every child shares with it because it is mapped from files.
    """

    def __init__(self, hash_seed: int) -> None:
        self.hash_seed = hash_seed
        self.process: subprocess.Popen[bytes] | None = None
        self.control: socket.socket | None = None
        self.ready = False
        self.start_by = math.inf
        self.failed_starts = 0
        self.waiting: collections.deque[Environment] = collections.deque()
        self.spawning = 0
        self.file_bytes = 0

    @property
    def takes_more(self) -> bool:
        """Whether one of those waiting, if any, may be forked now, as far as the server goes."""
        return self.ready and self.spawning < _SPAWN_WINDOW

    def start(self, limits: Limits, wanted: Sequence[str], max_children: int) -> socket.socket:
        """Starts a fresh interpreter; returns the control socket, non-blocking."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                zygote.command(theirs.fileno(), limits, wanted, max_children),
                env=zygote.environment(self.hash_seed),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd="/",
                # Ctrl-C reaches the trainer alone, which then shuts the pool down.
                start_new_session=True,
            )
        ours.setblocking(False)
        self.control = ours
        self.ready = False
        self.spawning = 0
        self.start_by = time.monotonic() + START_SECONDS
        return ours

    def ask(self, env: int, channel: socket.socket) -> None:
        """Asks for a child that speaks on `channel`."""
        assert self.control is not None
        self.spawning += 1
        try:
            socket.send_fds(self.control, [json.dumps({"env": env}).encode()], [channel.fileno()])
        except OSError:
            return  # it has died; the end of the control socket will tell

    def packets(self) -> Iterator[tuple[dict[str, Any], int] | None]:
        """What the server has sent, each with its descriptor (-1: none); None for its end. It is trusted."""
        while self.control is not None:
            try:
                packet, fds, _, _ = socket.recv_fds(self.control, _PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if not packet:
                yield None
                return
            yield json.loads(packet), fds[0] if fds else -1

    def stop(self, hangs: bool) -> str:
        """Reaps a server that is ending by itself, or `hangs`; returns its last words."""
        assert self.process is not None and self.control is not None
        self.control.close()
        self.control = None
        self.start_by = math.inf
        self.ready = False
        if hangs:
            self.process.kill()
        return self.reap()

    def reap(self) -> str:
        """Waits for the end of a server whose control socket is closed; returns its last words."""
        process = self.process
        assert process is not None and process.stderr is not None
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with process.stderr as pipe:
            os.set_blocking(pipe.fileno(), False)  # a dying child may still hold the other end
            lines = (pipe.read() or b"").decode("utf-8", "replace").strip().splitlines()
        self.process = None
        status = f" (status {process.returncode})"
        return f"{status}: {wire.one_line(lines[-1])}" if lines else status


def raise_descriptor_limit(max_live: int) -> None:
    """Makes room for a socket and a pidfd for each child."""
    needed = 2 * max_live + _SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        fitting = (hard - _SPARE_DESCRIPTORS) // 2
        raise ValueError(
            f"sandbox max_live={max_live} needs {needed} descriptors and the hard limit is {hard}; "
            + (f"use at most {fitting}, or raise it (ulimit -Hn)" if fitting > 0 else "raise it (ulimit -Hn)")
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
