"""Looks for processes that it could signal: with signal 0, which only asks."""

# expect: ok
# needs: seccomp, ids, landlock

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        me = os.getpid()
        for pid in {*range(max(1, me - 300), me + 20), os.getppid()} - {me}:
            attempts += 1
            try:
                os.kill(pid, 0)
                escaped += 1
            except OSError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
