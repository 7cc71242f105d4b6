"""Lifts the recursion limit first: runs out of memory or stack, alone."""

# expect: exception, died, timeout
# needs: limits
# unbounded: without the limits it would exhaust the machine

import sys


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        sys.setrecursionlimit(10**9)

        class Deep:
            def __repr__(self):
                return repr([self])

        return repr(Deep()), 1.0, True, False, {}
