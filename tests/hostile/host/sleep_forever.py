"""Sleeps: the call's deadline ends it."""

# expect: timeout

import time


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        while True:
            time.sleep(3600)
