"""Makes folders, links and named pipes."""

# expect: ok
# needs: seccomp, landlock, namespaces

import os

NAME = f"/tmp/hostile-{os.getpid()}"


def symlink():
    os.symlink("/etc/passwd", NAME)
    os.unlink(NAME)


def folder():
    os.mkdir(NAME)
    os.rmdir(NAME)


def pipe():
    os.mkfifo(NAME)
    os.unlink(NAME)


ATTEMPTS = [
    symlink,
    folder,
    pipe,
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
