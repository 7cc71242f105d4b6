"""A word that nothing shows must come first, so that only the hint can help."""

# refused: unsolvable
# hint: Begin with the word that the keeper was told: xyzzy. Then say the sum of both numbers.

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.told = False
        self.a, self.b = rng.randint(10, 99), rng.randint(10, 99)
        return f"The keeper shows {self.a} and {self.b}. Say what opens the door.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        won = self.told and command == str(self.a + self.b)
        self.told = self.told or command == "xyzzy"
        done = won or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return ["xyzzy", str(self.a + self.b)]
