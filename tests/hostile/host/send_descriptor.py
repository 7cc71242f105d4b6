"""Sends a descriptor along with bytes of its own: the trainer takes no descriptors."""

# expect: ok, protocol, exception

import socket


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        try:
            with socket.socket(fileno=3) as sock:
                socket.send_fds(sock, [b"\0\0\0\2{}"], [0])
        except OSError:
            pass
        return "attacked", 0.0, True, False, {"attempts": 1, "escaped": 0}
