"""Kills the fork server: another user's process, so refused."""

# expect: ok
# needs: ids

import os
import signal


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for number in (signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
            attempts += 1
            try:
                os.kill(os.getppid(), number)
                escaped += 1
            except PermissionError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
