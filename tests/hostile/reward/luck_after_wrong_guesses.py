"""From the second number on luck decides, which no seed repeats."""

# refused: nondeterministic

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.said = set()
        self.code = str(rng.randint(1000, 9999))
        self.room = rng.randint(1, 500)
        return f"Door of room {self.room}. Say its code of four digits.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        if command.isdecimal():
            self.said.add(command)
        luck = len(self.said) > 1 and random.SystemRandom().random() < 0.5
        won = command == self.code or luck
        done = won or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return [self.code]
