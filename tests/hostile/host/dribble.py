"""Sends its reply one byte at a time: no byte moves the deadline."""

# expect: timeout

import os
import struct
import time


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        for byte in struct.pack(">I", 10_000) + b" " * 10_000:
            os.write(3, bytes([byte]))
            time.sleep(0.05)
