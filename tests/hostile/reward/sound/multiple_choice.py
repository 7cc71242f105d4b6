"""The answer is always among the words shown, at a place that varies."""

# hint: Four of the words name things of one kind. Answer with the fifth.

import random

KINDS = {
    "birds": ["heron", "wren", "falcon", "raven", "plover"],
    "trees": ["willow", "maple", "spruce", "alder", "hazel"],
    "metals": ["cobalt", "nickel", "bismuth", "zinc", "osmium"],
}


class OddOne:
    def __init__(self, max_turns=3, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        self.rng = random.Random(seed)
        self.turn = self.right = 0
        return self.ask(), {}

    def ask(self):
        kind, other = self.rng.sample(sorted(KINDS), 2)
        self.odd = self.rng.choice(KINDS[other])
        words = self.rng.sample(KINDS[kind], 4) + [self.odd]
        self.rng.shuffle(words)
        return f"Round {self.right + 1} of 3. Which word is out of place: {' '.join(words)}?"

    def step(self, action):
        self.turn += 1
        if action not in ("\\boxed{" + self.odd + "}", self.odd):
            return "That one belongs.", 0.0, True, False, {"success": False}
        self.right += 1
        won = self.right == 3
        return ("All found." if won else self.ask()), float(won), won, False, {"success": won}

    def solution(self):
        copy = OddOne()
        copy.rng = random.Random()
        copy.rng.setstate(self.rng.getstate())
        copy.right, answers = 0, [self.odd]
        for _ in range(2):
            copy.ask()
            answers.append(copy.odd)
        return answers
