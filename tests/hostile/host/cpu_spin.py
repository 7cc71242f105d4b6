"""Computes for ever: the call's deadline ends it."""

# expect: timeout


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        while True:
            pass
