"""Allocates without end: MemoryError in the program, nothing else."""

# expect: exception
# needs: limits
# unbounded: without the limits it would exhaust the machine


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        hoard = []
        while True:
            hoard.append(bytearray(2**20))
