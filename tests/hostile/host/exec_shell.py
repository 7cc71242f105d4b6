"""Becomes a shell."""

# expect: ok
# needs: seccomp, landlock, namespaces

import contextlib
import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts, escaped = 1, 0
        with contextlib.suppress(OSError):
            os.execv("/bin/sh", ["sh", "-c", "exit 3"])
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
