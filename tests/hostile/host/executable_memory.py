"""Makes memory that can be both written and executed."""

# expect: ok
# needs: seccomp

import ctypes
import mmap

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
RWX = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC


def call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


def change():
    area = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    call(libc.mprotect, ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), mmap.PAGESIZE, RWX)


ATTEMPTS = [
    lambda: mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=RWX),
    change,
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
