"""Forks: the process limit refuses each time."""

# expect: ok
# needs: limits, seccomp

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for _ in range(20):
            attempts += 1
            try:
                pid = os.fork()
            except OSError:
                continue
            if pid == 0:
                os._exit(0)
            os.waitpid(pid, 0)
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
