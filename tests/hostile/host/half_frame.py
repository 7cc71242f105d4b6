"""Sends half a reply and waits: the deadline ends it."""

# expect: timeout

import os
import struct
import time


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.write(3, struct.pack(">I", 100) + b"[3,true,")
        time.sleep(3600)
