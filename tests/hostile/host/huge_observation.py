"""Returns 10 MB of text: a broken contract."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return "x" * 10**7, 0.0, True, False, {}
