"""Aborts the process."""

# expect: died

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.abort()
