"""Counts events of the whole machine, a known side channel."""

# expect: ok
# needs: seccomp

import ctypes
import sys

libc = ctypes.CDLL(None, use_errno=True)
ARM = "aarch64" in sys.implementation._multiarch
ATTRIBUTES = (ctypes.c_uint32 * 32)(1, 128)  # a software event


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.syscall, 241 if ARM else 298, ctypes.byref(ATTRIBUTES), 0, -1, -1, 0),
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
