"""Learns of files without opening them: what exists, how large it is, where links lead."""

# expect: ok
# needs: seccomp, namespaces

import os

ATTEMPTS = [
    lambda: os.stat("/etc/passwd"),
    lambda: os.lstat("/etc/passwd"),
    lambda: os.readlink("/proc/self/exe"),
    lambda: os.readlink("/proc/self/ns/net"),
    lambda: os.statvfs("/tmp"),
    lambda: os.stat("passwd", dir_fd=os.open("/etc", os.O_PATH)),
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
