"""Leaves a file where every user may."""

# expect: ok
# needs: seccomp, landlock, namespaces

import os


def leave(folder):
    name = f"{folder}/hostile-{os.getpid()}"
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
    os.unlink(name)


ATTEMPTS = [
    lambda: leave("/tmp"),
    lambda: leave("/dev/shm"),
    lambda: leave("/var/tmp"),
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
