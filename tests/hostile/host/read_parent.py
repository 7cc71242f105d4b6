"""Reads the fork server's memory at an address that it knows from its own."""

# expect: ok
# needs: seccomp, ids, landlock

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)

BUFFER = ctypes.create_string_buffer(8)


class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


HERE, THERE = Piece(ctypes.addressof(BUFFER), 8), Piece(id(None), 8)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.process_vm_readv, os.getppid(), ctypes.byref(HERE), 1, ctypes.byref(THERE), 1, 0),
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
