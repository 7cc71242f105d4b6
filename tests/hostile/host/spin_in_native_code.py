"""Spins inside one C call, where no Python-level signal handler would run: deadline."""

# expect: timeout

import re


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        return str(re.match(r"(a*)*b", "a" * 64)), 0.0, True, False, {}
