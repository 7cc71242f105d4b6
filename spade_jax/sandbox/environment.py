"""One environment as the pool sees it: its child, its socket and the calls it owes."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import signal
import socket

from spade_jax.sandbox import wire
from spade_jax.sandbox.limits import Limits

_READ_BYTES = 65_536


class Call:
    """A request that has not been answered."""

    __slots__ = ("began", "method", "of_episode", "seconds", "seq", "ticket")

    def __init__(self, ticket: int, seq: int, method: str, seconds: float) -> None:
        self.ticket = ticket
        self.seq = seq
        self.method = method
        self.seconds = seconds
        self.of_episode = False  # whether what is left of the episode is the shorter deadline
        self.began = math.nan  # set once the child is ready and all earlier calls are answered


class Environment:
    """From `open` until its child is reaped and the caller closed it.

    Attributes:
      id: given to the caller.
      hash_seed: names its fork server.
      socket: our end of the channel, None before the fork and after the end.
      pidfd: of the child, -1 while there is none; all signals go through it.
      pid: the child's process id as the trainer sees it, 0 while there is none.
      reader: cuts what the child sends into frames.
      outgoing: what the child's socket would not take yet.
      pending: calls in order; the child works on the first one.
      seq: number of the last request.
      ready: the child has locked itself down.
      doomed: to be killed as soon as there is a pidfd.
      deadline: when the first pending call, the fork or the word of its end is late.
      seconds: from when it was set to the deadline.
      extended: the deadline is one that was given a second time.
      alarm: its live entry in the pool's heap.
      episode_left: seconds that the calls of this episode may still take.
      failure: (kind, error), final.
    """

    def __init__(self, env: int, hash_seed: int, limits: Limits) -> None:
        self.id = env
        self.hash_seed = hash_seed
        self.socket: socket.socket | None = None
        self.pidfd = -1
        self.pid = 0
        self.reader = wire.FrameReader(limits.frame_bytes)
        self.outgoing = bytearray()
        self.pending: collections.deque[Call] = collections.deque()
        self.seq = wire.READY_SEQ
        self.ready = False
        self.doomed = False
        self.deadline = math.inf
        self.seconds = math.inf
        self.extended = False
        self.alarm = math.inf
        self.episode_left = limits.episode_seconds
        self.failure: tuple[str, str] | None = None

    def send(self, frame: bytes) -> bool:
        """Sends what the child's socket takes; True if the rest has begun to wait in `outgoing`."""
        if self.socket is None or self.outgoing:
            self.outgoing += frame
            return False
        try:
            sent = self.socket.send(frame, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            sent = 0
        except OSError:
            return False  # the child has closed its end; reading will tell
        self.outgoing += frame[sent:]
        return sent < len(frame)

    def receive(self) -> bytes | None:
        """What has arrived, b"" at the end, None when there is nothing now."""
        assert self.socket is not None
        try:
            return self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def kill(self) -> None:
        """Ends the child, now or once it exists."""
        if self.pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self.doomed = True

    def forget_process(self) -> None:
        """The process is gone, or never was."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1
            self.pid = 0
