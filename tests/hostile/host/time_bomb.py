"""Behaves for a step and exits in the next."""

# expect: died

import os


class Hostile:
    def reset(self, seed=None):
        self.steps = 0
        return "ready", {}

    def step(self, action):
        self.steps += 1
        if self.steps == 2:
            os._exit(0)
        return "behaved", 0.5, False, False, {"attempts": 1, "escaped": 0}
