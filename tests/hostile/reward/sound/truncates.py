"""The turn budget truncates; failing never terminates."""

# hint: Three amounts must add up to what is missing; then say ready.

import random


class Tide:
    def __init__(self, max_turns=10, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn, self.level = 0, rng.randint(20, 60)
        self.moves = [rng.choice((3, 5, 7)) for _ in range(3)]
        self.goal = self.level + sum(self.moves)
        return (
            f"Water at {self.level}, mark at {self.goal}. Add 3, 5 or 7 a turn; exactly three times, then say ready.",
            {},
        )

    def step(self, action):
        self.turn += 1
        word = action.replace("\\boxed{", "").replace("}", "").strip()
        text, won = "Unclear.", False
        if word in ("3", "5", "7"):
            self.level += int(word)
            text = f"Water at {self.level}."
        elif word == "ready":
            won = self.level == self.goal and self.turn == 4
            text = "On the mark." if won else "Not yet."
        return text, float(won), won, not won and self.turn >= self.max_turns, {"success": won}

    def solution(self):
        return [str(move) for move in self.moves] + ["ready"]
