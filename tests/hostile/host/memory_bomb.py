"""Allocates without end: MemoryError in the program, nothing else."""

# expect: exception


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        hoard = []
        while True:
            hoard.append(bytearray(2**20))
