"""Changes owner, mode and times of a device that everyone uses, to what they are."""

# expect: ok
# needs: seccomp

import os

ATTEMPTS = [
    lambda: os.chmod("/dev/null", 0o666),
    lambda: os.chown("/dev/null", 0, 0),
    lambda: os.fchmod(0, 0o666),
    lambda: os.utime("/dev/null"),
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
