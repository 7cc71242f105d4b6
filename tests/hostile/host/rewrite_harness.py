"""Rewrites the code that checks its own replies: the trainer checks them again."""

# expect: protocol

import sys


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        sys.modules["spade_jax.sandbox.wire"].checked = lambda method, value, limit: value
        return "won", "1e999", True, False, {"attempts": 1, "escaped": 0}
