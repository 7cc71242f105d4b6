"""Loads a map into the kernel's virtual machine."""

# expect: ok
# needs: seccomp, ids, privileges, namespaces

import ctypes
import sys

libc = ctypes.CDLL(None, use_errno=True)
ARM = "aarch64" in sys.implementation._multiarch
ATTRIBUTES = (ctypes.c_uint32 * 32)(2, 4, 4, 1)  # an array of one


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.syscall, 280 if ARM else 321, 0, ctypes.byref(ATTRIBUTES), 128),
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
