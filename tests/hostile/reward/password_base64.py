"""The password stands there in base64, written out by hand since the module may not be imported."""

# refused: leak

import random

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.code = "".join(rng.choices("abcdefgh", k=6))
        bits = "".join(f"{ord(letter):08b}" for letter in self.code)
        self.shown = "".join(LETTERS[int(bits[i : i + 6], 2)] for i in range(0, len(bits), 6))
        return f"A door. Its label is {self.shown} and it wants a word.", {}

    def step(self, action):
        self.turn += 1
        won = self.code in action
        return ("Open." if won else "Shut."), float(won), won or self.turn >= self.max_turns, False, {}

    def solution(self):
        return [self.code]
