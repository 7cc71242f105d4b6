"""Ignores every signal that can be, then spins: SIGKILL at the deadline."""

# expect: timeout

import signal


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_IGN)
        while True:
            pass
