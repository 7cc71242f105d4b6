"""Looks for descriptors of the fork server's or of a sibling's."""

# expect: ok

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for fd in range(4, 4096):
            attempts += 1
            try:
                os.dup(fd)
                escaped += 1
            except OSError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
