"""Writes a file of 1 MB: no byte beyond the file limit."""

# expect: ok
# needs: limits, seccomp, landlock, namespaces

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        name = f"/tmp/hostile-{os.getpid()}"
        attempts, escaped = 1, 0
        try:
            fd = os.open(name, os.O_CREAT | os.O_WRONLY, 0o600)
        except OSError:
            return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
        try:
            for _ in range(10):
                os.write(fd, bytes(10**5))
        except OSError:
            pass
        escaped = int(os.fstat(fd).st_size > 65_536)
        os.close(fd)
        os.unlink(name)
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
