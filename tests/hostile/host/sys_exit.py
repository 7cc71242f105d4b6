"""SystemExit is an exception of the program's like any other."""

# expect: exception

import sys


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        sys.exit(0)
