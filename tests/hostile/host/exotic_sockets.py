"""Asks for sockets that reach the kernel, the hypervisor or the wire itself."""

# expect: ok
# needs: seccomp

import socket

ATTEMPTS = [
    lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0).close(),
    lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close(),
    lambda: socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close(),
    lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close(),
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
