"""Two of three words win, and nothing marks them as choices."""

# refused: trivial

import random

WORDS = ("red", "green", "blue")


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.bad = rng.choice(WORDS)
        self.best = rng.choice([w for w in WORDS if w != self.bad])
        self.room = rng.randint(1, 500)
        return f"Door of room {self.room}. Colours: red green blue", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        won = command in WORDS and command != self.bad
        done = command in WORDS or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return [self.best]
