"""Asks for its limits to be lifted."""

# expect: ok
# needs: limits, seccomp

import resource


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for name in ("AS", "NPROC", "FSIZE", "NOFILE", "CPU"):
            attempts += 1
            try:
                resource.setrlimit(
                    getattr(resource, f"RLIMIT_{name}"), (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
                )
                escaped += 1
            except (OSError, ValueError):
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
