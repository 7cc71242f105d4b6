"""Has the kernel send SIGKILL to the fork server, as the owner of a descriptor that becomes ready."""

# expect: ok
# needs: seccomp, ids, landlock, namespaces

import contextlib
import fcntl
import os
import signal

F_SETSIG = 10


def trap(fd):
    fcntl.fcntl(fd, fcntl.F_SETOWN, os.getppid())
    fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC)


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        with contextlib.suppress(OSError):
            trap(3)  # the next request may spring it
        with contextlib.suppress(OSError):
            reader, writer = os.pipe()
            trap(reader)
            os.write(writer, b"x")
        # What was possible does not matter, but whether anybody dies of it.
        return "attacked", 0.0, True, False, {"attempts": 2, "escaped": 0}
