"""Recurses without end: RecursionError."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return self.step(action)
