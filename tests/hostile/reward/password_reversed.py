"""The password stands there backwards."""

# refused: leak

import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.code = "".join(rng.choices("abcdefgh", k=6))
        self.room = rng.randint(1, 500)
        return f"Door of room {self.room}. Engraved: {self.code[::-1]}. Say the word.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        won = command == self.code
        done = won or self.turn >= self.max_turns
        return ("Open." if won else "Shut."), float(won), done, False, {"success": won}

    def solution(self):
        return [self.code]
