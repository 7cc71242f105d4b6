"""Makes descriptors for events, timers, signals and watches."""

# expect: ok
# needs: seccomp

import ctypes
import select

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


ATTEMPTS = [
    lambda: call(libc.eventfd, 0, 0),
    lambda: call(libc.timerfd_create, 1, 0),
    lambda: call(libc.inotify_init),
    lambda: select.epoll().close(),
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
