"""Copies a descriptor out of the fork server."""

# expect: ok
# needs: seccomp, ids, landlock

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.syscall, 438, os.pidfd_open(os.getppid()), 0, 0),
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
