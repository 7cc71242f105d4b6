"""Answers by itself and exits at once: what it said counts, and no more."""

# expect: died

import json
import os
import struct


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        payload = json.dumps([3, True, ["bye", 0.0, False, False, {"attempts": 1, "escaped": 0}]]).encode()
        os.write(3, struct.pack(">I", len(payload)) + payload)
        os._exit(0)
