"""Asks for one capability back."""

# expect: ok
# needs: seccomp, ids, privileges

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)
CHOWN = (ctypes.c_uint32 * 6)(1, 1, 0, 0, 0, 0)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.capset, HEADER, CHOWN),
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
