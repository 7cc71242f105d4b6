"""Opens a port to be reached on."""

# expect: ok
# needs: seccomp, landlock

import socket


def listen(address):
    with socket.socket() as sock:
        sock.bind((address, 0))
        sock.listen()


ATTEMPTS = [
    lambda: listen("127.0.0.1"),
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
