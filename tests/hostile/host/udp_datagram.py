"""Sends a datagram to this host."""

# expect: ok
# needs: seccomp, namespaces

import socket

ATTEMPTS = [
    lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"secret", ("127.0.0.1", 9)),
    lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).sendto(b"secret", ("::1", 9)),
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
