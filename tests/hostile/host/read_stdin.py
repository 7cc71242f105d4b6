"""Waits for input: there is none, so EOFError."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return input(), 1.0, True, False, {}
