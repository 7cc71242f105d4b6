"""Leaves without a word, status 0."""

# expect: died

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os._exit(0)
