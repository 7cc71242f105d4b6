"""Connects to this host: even a refusal by the peer means that the network was reached."""

# expect: ok
# needs: seccomp, landlock, namespaces

import contextlib
import socket


def connect(port):
    with contextlib.suppress(ConnectionRefusedError):  # the port was closed, the way to it was not
        socket.socket().connect(("127.0.0.1", port))


ATTEMPTS = [
    lambda: connect(1),
    lambda: connect(22),
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
