"""Returns NaN honestly: a broken contract, told as an exception."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return "ready", float("nan"), True, False, {}
