"""The sum must bear a mark that nothing shows, so that only the hint can help."""

# refused: unsolvable
# hint: Say the sum of both numbers, with two exclamation marks behind it.

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.a, self.b = rng.randint(10, 99), rng.randint(10, 99)
        return f"The keeper shows {self.a} and {self.b}. Say their sum.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        won = command == f"{self.a + self.b}!!"
        done = won or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return [f"{self.a + self.b}!!"]
