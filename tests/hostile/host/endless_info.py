"""Returns an info dict that contains itself ten times over: cut, refused or out of time."""

# expect: exception, timeout


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        info = {}
        for i in range(10):
            info[i] = info
        return "ready", 0.0, True, False, info
