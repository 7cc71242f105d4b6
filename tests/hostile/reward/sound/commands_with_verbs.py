"""Commands have a verb and an object, and the observation lists both."""

# hint: Look through the places; what you find names the next one. Then say open and the name on the label.

import random

PLACES = ["desk", "shelf", "trunk", "vase", "drawer", "basket", "oven", "clock"]


class Study:
    def __init__(self, max_turns=9, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.note, self.key, self.door = rng.sample(PLACES, 3)
        self.held = False
        order = rng.sample(PLACES, len(PLACES))
        return f"A study: {', '.join(order)}. Verbs are look and open. Look finds the key; open tries it. Begin.", {}

    def step(self, action):
        self.turn += 1
        verb, _, thing = action.replace("\\boxed{", "").replace("}", "").strip().partition(" ")
        won = False
        if verb == "look" and thing == self.key:
            self.held = True
            text = f"A key, labelled with the {self.door}."
        elif verb == "look" and thing == self.note:
            text = f"A note: the key is in the {self.key}."
        elif verb == "open" and thing == self.door and self.held:
            won = True
            text = "It opens."
        else:
            text = "Nothing."
        return text, float(won), won or self.turn >= self.max_turns, False, {"success": won}

    def solution(self):
        return [f"look {self.key}", f"open {self.door}"]
