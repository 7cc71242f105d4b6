"""Opens files by handle instead of path."""

# expect: ok
# needs: seccomp, namespaces

import ctypes

libc = ctypes.CDLL(None, use_errno=True)


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


HANDLE = (ctypes.c_uint32 * 34)(128)
ATTEMPTS = [
    lambda: call(libc.name_to_handle_at, -100, b"/etc/passwd", HANDLE, ctypes.byref(ctypes.c_int()), 0),
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
