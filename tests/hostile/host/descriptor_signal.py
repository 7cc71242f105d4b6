"""Has SIGKILL sent to the fork server whenever a request arrives, by the kernel on its behalf."""

# expect: ok
# needs: seccomp, ids, landlock, namespaces

import contextlib
import fcntl
import os
import signal

F_SETSIG = 10


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        # The next request springs the trap: the fork server would die of it.
        with contextlib.suppress(OSError):
            fcntl.fcntl(3, fcntl.F_SETOWN, os.getppid())
        with contextlib.suppress(OSError):
            fcntl.fcntl(3, F_SETSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            fcntl.fcntl(3, fcntl.F_SETFL, os.O_ASYNC)
        return "attacked", 0.0, True, False, {"attempts": 1, "escaped": 0}
