"""Opens the fork server's memory and descriptors through /proc."""

# expect: ok
# needs: seccomp, ids, landlock, namespaces

import os


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for name in ("mem", "environ", "fd/0", "maps"):
            attempts += 1
            try:
                os.close(os.open(f"/proc/{os.getppid()}/{name}", os.O_RDONLY))
                escaped += 1
            except OSError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
