"""Reads the environment of the fork server, where a trainer's keys would be."""

# expect: ok

import ctypes
import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        libc = ctypes.CDLL(None)
        libc.getenv.restype = ctypes.c_char_p
        escaped = len(os.environ)
        names = (b"PATH", b"HOME", b"USER", b"PYTHONPATH", b"PWD")
        for name in names:
            escaped += libc.getenv(name) is not None
        return "attacked", 0.0, True, False, {"attempts": 1 + len(names), "escaped": escaped}
