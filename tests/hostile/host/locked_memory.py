"""Locks memory, so that it cannot be paged out."""

# expect: ok
# needs: limits, seccomp

import ctypes

libc = ctypes.CDLL(None, use_errno=True)
BUFFER = ctypes.create_string_buffer(4096)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.mlock, BUFFER, 4096),
    lambda: call(libc.mlockall, 1),
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
