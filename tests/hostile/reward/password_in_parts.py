"""Each command of the solution stands in the observation, in order."""

# refused: leak

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.given = ""
        self.code = str(rng.randint(1000, 9999))
        self.room = rng.randint(1, 500)
        return f"Dials: first {self.code[0]}, then {self.code[1]}, now {self.code[2]}, last {self.code[3]}.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        self.given = getattr(self, "given", "") + command
        won = self.given == self.code
        done = won or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return list(self.code)
