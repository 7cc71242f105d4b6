"""Stores keys in the kernel, where others of its user find them."""

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
    lambda: call(libc.syscall, 217 if ARM else 248, b"user", b"hostile", b"x", 1, -2),
    lambda: call(libc.syscall, 219 if ARM else 250, 0, -3, 1),
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
