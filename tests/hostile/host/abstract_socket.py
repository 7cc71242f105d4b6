"""Waits under an abstract name, where another environment may meet it."""

# expect: ok
# needs: seccomp

import os
import socket


def meet():
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(f"\0hostile-{os.getpid()}")
        sock.listen()


ATTEMPTS = [
    meet,
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for attempt in ATTEMPTS:
            attempts += 1
            try:
                attempt()
            except OSError:
                continue
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
