"""Prints for ever, to both streams: goes nowhere, until the deadline."""

# expect: timeout

import sys


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        while True:
            print("flood" * 1000)
            sys.stderr.write("flood" * 1000)
