"""Forks by the bare system calls, past the library."""

# expect: ok
# needs: limits, seccomp

import ctypes
import os
import sys

libc = ctypes.CDLL(None, use_errno=True)
ARM = "aarch64" in sys.implementation._multiarch
SIGCHLD = 17


def forked(number, *arguments):
    pid = libc.syscall(number, *arguments)
    if pid < 0:
        raise OSError(ctypes.get_errno(), "")
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


CLONE_ARGUMENTS = (ctypes.c_uint64 * 8)(0, 0, 0, 0, SIGCHLD)


ATTEMPTS = [
    lambda: forked(220 if ARM else 56, SIGCHLD, 0, 0, 0, 0),
    lambda: forked(435, ctypes.byref(CLONE_ARGUMENTS), 64),
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
