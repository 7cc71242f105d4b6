"""Raises with 10 MB of terminal control sequences as its message: one short printable line arrives."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        raise ValueError("\x1b[2J\n" * 10**6)
