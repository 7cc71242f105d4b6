"""The state is a dataclass and the class comes last."""

# hint: Halve the range each time; answer with the depth alone.

from __future__ import annotations

import random
from dataclasses import dataclass, field


@dataclass
class State:
    target: int
    tries: int = 0
    seen: list = field(default_factory=list)


def unbox(action):
    start, end = action.find("{"), action.rfind("}")
    return action[start + 1 : end].strip() if 0 <= start < end else action.strip()


class Depths:
    """Find how deep the wreck lies."""

    def __init__(self, max_turns=7, **kwargs):
        self.limit = max_turns

    def reset(self, seed=None):
        self.state = State(random.Random(seed).randrange(100, 400))
        bound = self.state.target // 50 * 50
        return f"A wreck lies between {bound - 50} and {bound + 90} metres. Lower the line to a depth.", {"deep": True}

    def step(self, action):
        state, word = self.state, unbox(action)
        state.tries += 1
        if not (word.isascii() and word.isdigit() and len(word) <= 5):
            return "The line needs a depth in metres.", 0.0, state.tries >= self.limit, False, {"success": False}
        depth = int(word)
        state.seen.append(depth)
        if depth == state.target:
            return "Contact.", 1.0, True, False, {"success": True}
        word = "deeper" if depth < state.target else "higher"
        return f"Not at {depth}: {word}.", 0.0, state.tries >= self.limit, False, {"success": False}

    def solution(self):
        return [str(self.state.target)]

    def secrets(self):
        return [str(self.state.target)]

    def close(self):
        self.state = None
