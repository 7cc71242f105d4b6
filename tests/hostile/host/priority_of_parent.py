"""Changes how the fork server is scheduled, to what it is."""

# expect: ok
# needs: seccomp, ids

import os

ATTEMPTS = [
    lambda: os.setpriority(os.PRIO_PROCESS, os.getppid(), os.getpriority(os.PRIO_PROCESS, os.getppid())),
    lambda: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(os.getppid())),
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
