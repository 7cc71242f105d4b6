"""Undoes what its own process was set to: not to be traced, to die with the fork server."""

# expect: ok
# needs: seccomp

import ctypes

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.prctl, 4, 1, 0, 0, 0),  # dumpable
    lambda: call(libc.prctl, 1, 0, 0, 0, 0),  # no signal at the parent's death
    lambda: call(libc.prctl, 36, 1, 0, 0, 0),  # adopts orphans
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
