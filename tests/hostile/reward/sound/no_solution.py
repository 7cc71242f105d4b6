"""Keeps the published contract only: accepted, unverified."""

import random


class Bells:
    def __init__(self, max_turns=6, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn, self.bell = 0, rng.randint(1, 60)
        return f"Sixty bells; in hall {rng.randint(1, 999)} one is cracked. Which? A number from 1 to 60.", {}

    def step(self, action):
        self.turn += 1
        word = action.replace("\\boxed{", "").replace("}", "").strip()
        won = word == str(self.bell)
        side = "left" if len(word) < 4 and word.isascii() and word.isdigit() and int(word) > self.bell else "right"
        return ("Cracked." if won else f"Further {side}."), float(won), won or self.turn >= 6, False, {"success": won}
