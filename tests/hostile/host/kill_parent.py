"""Kills the fork server, whose death would be everyone's."""

# expect: ok
# needs: seccomp, ids, landlock, namespaces

import contextlib
import os
import signal


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        # Whether a signal is sent does not matter, but whether anybody minds: process 1 of a namespace does not.
        numbers = (signal.SIGTERM, signal.SIGKILL)
        for number in numbers:
            with contextlib.suppress(OSError):
                os.kill(os.getppid(), number)
        return "attacked", 0.0, True, False, {"attempts": len(numbers), "escaped": 0}
