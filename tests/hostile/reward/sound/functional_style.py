"""Everything is a closure, with a lambda and a comprehension where others have attributes."""

# hint: Start with the first thread; for each next one multiply by three and add it.

import functools
import itertools
import random


class Weave:
    def __init__(self, max_turns=6, **kwargs):
        self.budget = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        size = rng.randint(4, 6)
        steps = [rng.randint(2, 9) for _ in range(size)]
        total = functools.reduce(lambda a, b: a * 3 + b, steps)
        left = itertools.count(self.budget - 1, -1)

        def answer(action):
            turns = next(left)
            won = action.strip("\\boxed{}") == str(total)
            note = "Even." if total % 2 == 0 else "Odd."
            return ("Woven." if won else note), float(won), won or turns <= 0, False, {"success": won}

        self.answer, self.total = answer, total
        return f"Threads {', '.join(map(str, steps))}: triple what you have and add the next, from the left. Total?", {}

    def step(self, action):
        return self.answer(action)

    def solution(self):
        return [str(self.total)]
