"""Exits with the status of a failed lockdown: still its own death, never a fault of ours that would be masked."""

# expect: died

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os._exit(1)
