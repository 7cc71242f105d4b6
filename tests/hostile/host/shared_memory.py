"""Hoards memory that outlives its process, or that siblings could map."""

# expect: ok
# needs: seccomp

import ctypes
import mmap

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def segment():
    found = call(libc.shmget, 0, 4096, 0o600 | 0o1000)
    libc.shmctl(found, 0, None)


ATTEMPTS = [
    segment,
    lambda: mmap.mmap(-1, 4096).close(),
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
