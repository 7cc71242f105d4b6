"""Listed buttons in any order open it, so that no choice matters."""

# refused: trivial

import random


class Panel:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.order = rng.sample("QRST", 3)
        self.pressed = 0
        return f"Panel {rng.randint(1, 99)} has four keys, Q to T. Press three.", {}

    def step(self, action):
        self.turn += 1
        self.pressed += any(key in action for key in "QRST")
        won = self.pressed == 3
        return f"{self.pressed} pressed.", float(won), won or self.turn >= self.max_turns, False, {}

    def solution(self):
        return self.order
