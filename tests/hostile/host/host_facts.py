"""Asks for kernel version, load and processors, by which machines can be told apart."""

# expect: ok
# needs: seccomp

import os

ATTEMPTS = [
    os.uname,
    lambda: os.sched_getaffinity(0),
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
