"""Compiles nested brackets, deep enough to exhaust a parser: an error or a death of its own."""

# expect: exception, died


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return str(eval("(" * 100_000 + ")" * 100_000)), 1.0, True, False, {}
