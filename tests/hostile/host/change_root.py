"""Changes its root directory, the first step out of a file system."""

# expect: ok
# needs: seccomp, ids, privileges

import os

ATTEMPTS = [
    lambda: os.chroot("/"),
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
