"""Keeps its hoard reachable, so that not even the error reply may fit: raises or dies."""

# expect: exception, died
# needs: limits
# unbounded: without the limits it would exhaust the machine


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        self.hoard = [None]
        try:
            while True:
                self.hoard = [self.hoard, bytearray(2**16)]
        except MemoryError:
            while True:
                self.hoard = [self.hoard]
