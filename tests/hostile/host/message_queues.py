"""Hoards memory in message queues, which outlive their process."""

# expect: ok
# needs: seccomp

import ctypes

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def queue():
    found = call(libc.msgget, 0, 0o600 | 0o1000)
    libc.msgctl(found, 0, None)


def semaphores():
    found = call(libc.semget, 0, 1, 0o600 | 0o1000)
    libc.semctl(found, 0, 0)


ATTEMPTS = [
    queue,
    semaphores,
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
