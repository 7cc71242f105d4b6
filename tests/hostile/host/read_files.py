"""Reads what every user may read."""

# expect: ok
# needs: seccomp, landlock, namespaces

import os

ATTEMPTS = [
    lambda: os.close(os.open("/etc/passwd", os.O_RDONLY)),
    lambda: os.listdir("/etc"),
    lambda: os.listdir("/proc/self/fd"),
    lambda: os.close(os.open("/proc/self/maps", os.O_RDONLY)),
    lambda: os.close(os.open("/proc/1/cmdline", os.O_RDONLY)),
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for attempt in ATTEMPTS:
            attempts += 1
            try:
                attempt()
            except OSError:
                continue
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
