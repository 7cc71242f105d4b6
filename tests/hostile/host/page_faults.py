"""Handles its own page faults, which stretches races in the kernel."""

# expect: ok
# needs: seccomp

import ctypes
import sys

libc = ctypes.CDLL(None, use_errno=True)
ARM = "aarch64" in sys.implementation._multiarch


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.syscall, 282 if ARM else 323, 1),
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
