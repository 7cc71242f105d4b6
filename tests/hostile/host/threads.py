"""Starts threads: the process limit covers them."""

# expect: ok
# needs: limits, seccomp

import _thread


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for _ in range(20):
            attempts += 1
            try:
                _thread.start_new_thread(lambda: None, ())
                escaped += 1
            except RuntimeError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
