"""Hoards memory in files without a name, outside its address space."""

# expect: ok
# needs: seccomp

import os

KEPT = []


def hoard():
    KEPT.append(os.memfd_create("hoard"))
    os.write(KEPT[-1], bytes(60_000))


ATTEMPTS = [
    hoard,
    hoard,
    hoard,
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for attempt in ATTEMPTS:
            attempts += 1
            try:
                attempt()
            except OSError:
                continue
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
