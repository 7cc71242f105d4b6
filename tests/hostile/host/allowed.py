"""Does what a program may: time, random bytes, its own signals, its limits. All of it must work."""

# expect: ok

import os
import resource
import signal
import time

KEPT = []


def signal_itself():
    signal.signal(signal.SIGUSR1, lambda *_: KEPT.append(1))
    os.kill(os.getpid(), signal.SIGUSR1)
    time.sleep(0.001)
    assert KEPT, "the signal did not arrive"


ALLOWED = [
    time.time,
    time.perf_counter,
    time.process_time,
    time.localtime,
    lambda: time.sleep(0.001),
    lambda: os.urandom(8),
    lambda: bytes(10_000_000),
    lambda: resource.getrlimit(resource.RLIMIT_AS),
    lambda: os.close(os.dup(0)),
    os.getpid,
    signal_itself,
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        for allowed in ALLOWED:
            allowed()
        return "behaved", 0.0, True, False, {"attempts": len(ALLOWED), "escaped": 0}
