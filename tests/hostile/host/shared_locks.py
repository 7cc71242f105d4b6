"""Locks /dev/null, the one file that all environments share."""

# expect: ok
# needs: seccomp

import fcntl

ATTEMPTS = [
    lambda: fcntl.flock(0, fcntl.LOCK_EX | fcntl.LOCK_NB),
    lambda: fcntl.lockf(0, fcntl.LOCK_SH | fcntl.LOCK_NB),
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
