"""Asks for root's ids back."""

# expect: ok
# needs: ids, seccomp

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for become in (os.setuid, os.setgid, os.seteuid, os.setegid):
            attempts += 1
            try:
                become(0)
                escaped += 1
            except OSError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
