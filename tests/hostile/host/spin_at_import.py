"""Spins in the module body: the deadline of construct ends it."""

# expect: timeout

while True:
    pass


class Hostile:
    pass
