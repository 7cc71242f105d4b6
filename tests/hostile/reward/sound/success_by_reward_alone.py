"""No info at all: success is what terminates with a reward of 1."""

# hint: Move the last letters back to the front, as many as the word lacks.

import random


class Mirror:
    def __init__(self, max_turns=5, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.word = "".join(rng.choice("bdfgk") + rng.choice("aeiou") for _ in range(3))
        self.shift = rng.choice([2, 4])
        return f"A parrot heard {self.turned()}. It always starts {self.shift} letters late. What was said?", {}

    def turned(self):
        return self.word[self.shift :] + self.word[: self.shift]

    def step(self, action):
        self.turn += 1
        said = action.strip().removeprefix("\\boxed{").removesuffix("}").lower()
        return (
            ("Yes!", 1.0, True, False, {})
            if said == self.word
            else ("No.", 0.0, self.turn >= self.max_turns, False, {})
        )

    def solution(self):
        return [self.word]
