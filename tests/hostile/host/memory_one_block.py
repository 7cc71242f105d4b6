"""Asks for 64 GiB at once: MemoryError."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return str(len(bytearray(2**36))), 1.0, True, False, {}
