"""Stops its own process: the deadline ends it, stopped as it is."""

# expect: timeout

import os
import signal


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        os.kill(os.getpid(), signal.SIGSTOP)
        return "went on", 1.0, True, False, {}
