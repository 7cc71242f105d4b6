"""Reads and sets limits of the fork server."""

# expect: ok
# needs: seccomp, ids

import os
import resource

ATTEMPTS = [
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU),
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE, resource.prlimit(os.getppid(), resource.RLIMIT_CORE)),
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
