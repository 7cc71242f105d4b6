"""Returns half a surrogate pair: a broken contract."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return "\ud800", 0.0, True, False, {}
