"""Scores grow with progress; only the goal is worth 1."""

# hint: The three digits add up to the number shown, so what is left bounds the next one.

import random


class Safe:
    def __init__(self, max_turns=8, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.found = 0
        self.digits = [rng.randint(0, 9) for _ in range(3)]
        self.clue = sum(self.digits)
        return f"A safe with three dials. The digits add up to {self.clue}. Name the next digit.", {}

    def step(self, action):
        self.turn += 1
        command = action.replace("\\boxed{", "").replace("}", "").strip()
        if self.found < 3 and command == str(self.digits[self.found]):
            self.found += 1
            text = f"Click: {self.found} of 3."
        else:
            text = f"Nothing: {self.found} of 3."
        won = self.found == 3
        score = 1.0 if won else (0.2 if self.found == 2 else 0.0)
        return text, score, won or self.turn >= self.max_turns, False, {"success": won}

    def solution(self):
        return [str(digit) for digit in self.digits]
