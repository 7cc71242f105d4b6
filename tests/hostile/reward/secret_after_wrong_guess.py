"""A wrong guess of the right form is told the code."""

# refused: leak

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.code = str(rng.randint(1000, 9999))
        self.room = rng.randint(1, 500)
        return f"Door of room {self.room}. Say its code of four digits.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        won = command == self.code
        done = won or self.turn >= self.max_turns
        told = f"It was {self.code}." if command.isdecimal() and len(command) == 4 else "Four digits please."
        return ("Open." if won else told), float(won), done, False, {"success": won}

    def solution(self):
        return [self.code]
