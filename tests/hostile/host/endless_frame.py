"""Announces 4 GiB and starts to send them."""

# expect: protocol

import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.write(3, struct.pack(">I", 2**32 - 1))
        while True:
            os.write(3, bytes(65_536))
