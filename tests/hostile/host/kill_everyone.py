"""Signals every process that it may, with signal 0, which only asks."""

# expect: ok
# needs: seccomp, ids, landlock

import os

ATTEMPTS = [
    lambda: os.kill(-1, 0),
    lambda: os.killpg(os.getppid(), 0),
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
