"""Sets signal delivery and terminal input by ioctl."""

# expect: ok
# needs: seccomp

import fcntl
import struct

FIOASYNC, FIOSETOWN, FIONBIO = 0x5452, 0x8901, 0x5421
ON = struct.pack("i", 1)

ATTEMPTS = [
    lambda: fcntl.ioctl(3, FIOASYNC, ON),
    lambda: fcntl.ioctl(3, FIOSETOWN, ON),
    lambda: fcntl.ioctl(3, FIONBIO, struct.pack("i", 0)),
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
