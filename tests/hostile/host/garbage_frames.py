"""Sends frames that hold no JSON."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.write(3, struct.pack(">I", 64) + bytes(range(64)))
        return "ready", 1.0, True, False, {}
