"""Opens descriptors without end: no more than the limit."""

# expect: ok
# needs: limits

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts, escaped, held = 0, 0, []
        try:
            for _ in range(10_000):
                attempts += 1
                held.append(os.dup(0))
        except OSError:
            pass
        escaped = int(len(held) >= 16)
        for fd in held:
            os.close(fd)
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
