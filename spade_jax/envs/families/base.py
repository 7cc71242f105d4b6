"""What a bundled family of environments is: a program writer and a scripted player.

A *family* is a recipe for programs that keep the environment contract
(`spade_jax/envs/contract.py`). Its parameters are written into the program as
plain constants, so that a designer policy that has seen the family can vary
them. Families serve three ends: the corpus of the warm start, the
fixed-environment baseline, and the held-out probe.

Adding a family is adding a file in this folder that defines `FAMILY`.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Mapping, Sequence
from typing import Any

TRAIN = "train"
HELD_OUT = "held_out"

# How often a scripted player of the warm start acts at random. The warm-started
# policy inherits this noise, which leaves self-play something to improve.
NOISE_PLAIN = 0.3
NOISE_HINTED = 0.1


class Player(abc.ABC):
    """A scripted player: reads observations only, never the program's state."""

    @abc.abstractmethod
    def act(self, observation: str) -> str:
        """Returns a whole response: a short reason, then `\\boxed{command}`."""


class Family(abc.ABC):
    """One family of environments.

    Attributes:
      name: snake_case, the file's name.
      skill: one of `spade_jax.designer.prompts.SKILLS`.
      held_out: True keeps the whole family out of the warm start.
    """

    name: str
    skill: str
    held_out: bool = False

    @abc.abstractmethod
    def parameters(self, rng: random.Random, split: str) -> dict[str, Any]:
        """Draws a program's constants.

        `split` is TRAIN or HELD_OUT; the two difficulty ranges are disjoint.
        """

    @abc.abstractmethod
    def source(self, params: Mapping[str, Any], words: Sequence[str]) -> str:
        """Writes the program. `words` (at least 8) are theme words of the document."""

    @abc.abstractmethod
    def hint(self, params: Mapping[str, Any]) -> str:
        """The key insight in under 40 words; right for every seed, never the answer."""

    @abc.abstractmethod
    def player(self, params: Mapping[str, Any], rng: random.Random, hinted: bool) -> Player:
        """A player of partial skill; a hinted one also uses what `hint` says."""


def class_name(words: Sequence[str], noun: str) -> str:
    """Names a class after the document's first theme word: `("loop",), "Hunt"` -> LoopHunt."""
    return words[0].capitalize() + noun


def boxed(reason: str, command: object) -> str:
    """A response in the agent's format."""
    return f"{reason} \\boxed{{{command}}}"
