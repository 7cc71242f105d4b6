"""Opens devices: terminals, kernel log, memory, virtual machines."""

# expect: ok
# needs: seccomp, landlock, namespaces

import os

ATTEMPTS = [
    lambda: os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
    lambda: os.close(os.open("/dev/kmsg", os.O_RDWR | os.O_NOCTTY)),
    lambda: os.close(os.open("/dev/mem", os.O_RDWR | os.O_NOCTTY)),
    lambda: os.close(os.open("/dev/kvm", os.O_RDWR | os.O_NOCTTY)),
    lambda: os.close(os.open("/dev/fuse", os.O_RDWR | os.O_NOCTTY)),
    lambda: os.close(os.open("/dev/zero", os.O_RDWR | os.O_NOCTTY)),
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
