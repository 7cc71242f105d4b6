"""Breaks builtins and shared modules: its own copies, so siblings go on."""

# expect: ok, exception, died

import builtins
import json
import os
import random


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        random.seed = random.random = json.dumps = os.getpid = None
        attempts, escaped = 1, 0
        for name in ("print", "open", "isinstance", "len"):
            setattr(builtins, name, None)
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
