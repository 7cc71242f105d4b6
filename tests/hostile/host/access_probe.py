"""Asks whether files exist, which returns a truth value and no error."""

# expect: ok
# needs: seccomp, namespaces

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for name in ("/etc/passwd", "/usr", "/proc/self/exe"):
            attempts += 2
            escaped += os.access(name, os.F_OK) + os.path.exists(name)
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
