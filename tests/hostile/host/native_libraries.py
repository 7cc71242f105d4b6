"""Loads native code from the system's libraries."""

# expect: ok
# needs: seccomp, landlock, namespaces

import ctypes

ATTEMPTS = [
    lambda: ctypes.CDLL("libanl.so.1"),
    lambda: ctypes.CDLL("libnss_files.so.2"),
    lambda: ctypes.CDLL("libthread_db.so.1"),
    lambda: ctypes.CDLL("libBrokenLocale.so.1"),
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
