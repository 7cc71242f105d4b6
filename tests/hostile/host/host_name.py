"""Renames the host, to what it is called."""

# expect: ok
# needs: seccomp, ids, privileges

import os
import socket

ATTEMPTS = [
    lambda: socket.sethostname(os.uname().nodename),
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
