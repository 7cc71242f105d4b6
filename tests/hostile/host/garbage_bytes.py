"""Sends bytes that are no frame: their length alone is refused."""

# expect: protocol

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        while True:
            os.write(3, b"\xff" * 4096)
