"""Stops reading, so that the trainer's next send fails."""

# expect: ok, died

import contextlib
import socket


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        with contextlib.suppress(OSError):
            channel = socket.socket(fileno=3)
            channel.shutdown(socket.SHUT_RD)
            channel.detach()
        attempts, escaped = 1, 0
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
