"""Finds the fork server's control socket among the objects it inherited, and speaks on it."""

# expect: ok

import socket
import sys


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        frame = sys._getframe()
        while frame is not None:
            for value in [*frame.f_locals.values(), *getattr(frame.f_locals.get("self"), "__dict__", {}).values()]:
                if isinstance(value, socket.socket):
                    attempts += 1
                    try:
                        value.send(b"{}")
                        escaped += 1
                    except OSError:
                        pass
            frame = frame.f_back
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
