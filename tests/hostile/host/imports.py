"""Imports what was not loaded beforehand: ModuleNotFoundError for each."""

# expect: ok


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for name in ("jax", "numpy", "subprocess", "multiprocessing", "urllib.request", "spade_jax.train"):
            attempts += 1
            try:
                __import__(name)
                escaped += 1
            except ModuleNotFoundError:
                pass
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
