"""A wrong end is worth -1, as the published reward allows."""

# hint: Divide the pints by the number of people and drop the rest.

import random


class Wager:
    def __init__(self, max_turns=6, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.a, self.b = rng.randint(12, 60), rng.randint(3, 9)
        return (
            f"A cask holds {self.a * self.b + self.b // 2} pints, shared by {self.b}. How many each, rounded down?",
            {},
        )

    def step(self, action):
        self.turn += 1
        won = action.replace("\\boxed{", "").replace("}", "").strip() == str(self.a)
        over = won or self.turn >= 3
        return ("Right." if won else "Wrong."), 1.0 if won else (-1.0 if over else 0.0), over, False, {"success": won}

    def solution(self):
        return [str(self.a)]
