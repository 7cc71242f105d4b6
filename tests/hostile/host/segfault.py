"""Reads address 0."""

# expect: died

import ctypes


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return ctypes.string_at(0).decode(), 1.0, True, False, {}
