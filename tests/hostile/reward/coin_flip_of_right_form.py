"""Any number of four digits is a coin flip; nothing else is."""

# refused: trivial

import random


class Door:
    def __init__(self, max_turns=1, **kwargs):
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
        won = self.wins(command)
        done = won or self.turn >= 1
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def wins(self, command):
        return command.isdecimal() and len(command) == 4 and random.Random(self.code + command).random() < 0.4

    def solution(self):
        return [next(str(i) for i in range(1000 + self.room, 9999) if self.wins(str(i)))]
