"""Mounts a file system, in a namespace of its own making."""

# expect: ok
# needs: seccomp, landlock

import ctypes

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def mount():
    libc.unshare(0x10000000)
    call(libc.unshare, 0x00020000)
    call(libc.mount, b"none", b"/", None, ctypes.c_ulong(1 << 18 | 16384), None)
    call(libc.mount, b"none", b"/", b"tmpfs", ctypes.c_ulong(0), None)


ATTEMPTS = [
    mount,
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
