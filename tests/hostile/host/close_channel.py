"""Closes its channel and lives on: noticed at once, and ended."""

# expect: died

import os
import time


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.close(3)
        time.sleep(3600)
