"""The interface of a two-player zero-sum game in text.

One object is one play: it is made with its seed and played to its end, so nothing of an earlier play
can survive in it, and it draws from a generator of its own, so plays may interleave.
"""

from __future__ import annotations

import abc
import random
import re
from typing import ClassVar

SEATS = 2
MAX_ACTION_CHARS = 200  # a longer command is no action of any game

_SPACES = re.compile(r"\s+")


def normalise(text: str) -> str | None:
    """A command in the form in which actions are compared, None where it cannot be one.

    Case, white space and one pair of square brackets around it do not count.
    """
    if len(text) > MAX_ACTION_CHARS or not text.isascii():
        return None
    text = _SPACES.sub(" ", text.strip()).lower()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return text


class Game(abc.ABC):
    """One play of a two-player zero-sum game.

    Seats are 0 and 1. A subclass sets `player` and, at the end, calls `_end`.

    Attributes:
      name: the game's name in the registry, in configs and in metrics.
      player: the seat to move, None when the play is over.
    """

    name: ClassVar[str]

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self._returns: tuple[float, float] | None = None
        self.player: int | None = 0

    @abc.abstractmethod
    def rules(self) -> str:
        """The rules, the same for both seats and at every turn."""

    @abc.abstractmethod
    def observe(self, player: int) -> str:
        """All that the seat knows of the play now, in words that do not tell which seat it is."""

    @abc.abstractmethod
    def legal_actions(self) -> tuple[str, ...]:
        """Every action of the seat to move, in a fixed order; () when the play is over."""

    def parse(self, command: str) -> str | None:
        """The legal action that a command means, None where it means none. Hostile text is safe here."""
        wanted = normalise(command)
        return next((action for action in self.legal_actions() if normalise(action) == wanted), None)

    def step(self, action: str) -> None:
        """The seat to move plays `action`, one of `legal_actions()`.

        Raises:
          ValueError: it is none of them.
        """
        if action not in self.legal_actions():
            raise ValueError(f"{self.name}: {action!r} is no legal action of seat {self.player}")
        self._play(action)

    @abc.abstractmethod
    def _play(self, action: str) -> None:
        """`step` for an action that is known to be legal."""

    def returns(self) -> tuple[float, float]:
        """The returns of both seats, which sum to 0, each in [-1, 1].

        Raises:
          ValueError: the play is not over.
        """
        if self._returns is None:
            raise ValueError(f"{self.name}: the play is not over, so it has no returns yet")
        return self._returns

    def _end(self, seat0: float) -> None:
        """Ends the play with the first seat's return."""
        self._returns = (float(seat0), -float(seat0))
        self.player = None


def winner_return(difference: float) -> float:
    """The first seat's return where the larger score wins: +1, -1 or 0, from the difference of scores."""
    return float((difference > 0) - (difference < 0))
