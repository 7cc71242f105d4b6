"""Pig: roll and risk what the turn has collected, or hold."""

from __future__ import annotations

from spade_jax.envs.games.base import Game, winner_return

ROLL, HOLD = "[roll]", "[hold]"


class PigDice(Game):
    """Args:
      seed: of the die.
      target: score that wins.
      moves: rolls and holds of both seats together, after which the higher score wins.

    Attributes:
      scores: of both seats, held.
      turn_total: collected in this turn, not yet held.
    """

    name = "pig_dice"

    def __init__(self, seed: int, *, target: int = 50, moves: int = 100):
        super().__init__(seed)
        for key, value, least in (("target", target, 6), ("moves", moves, 2)):
            if value < least:
                raise ValueError(f"games.pig_dice.{key}={value} is too small; use at least {least}")
        self._target, self._moves, self._made = target, moves, 0
        self._last = "none"
        self.scores, self.turn_total = [0, 0], 0

    def rules(self) -> str:
        return (
            f"Pig. The first to {self._target} points wins. In your turn [roll] the die as often as you like: 2 to 6 "
            "add to the turn's total, a 1 loses it and ends the turn. [hold] adds the total to your score and ends the "
            f"turn. After {self._moves} moves the higher score wins. Answer [roll] or [hold]."
        )

    def observe(self, player: int) -> str:
        mine = self.turn_total if player == self.player else 0
        return (
            f"Move {min(self._made + 1, self._moves)} of {self._moves}. Score: you {self.scores[player]}, opponent "
            f"{self.scores[1 - player]}. Turn total: {mine}. Last roll: {self._last}."
        )

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.player is None else (ROLL, HOLD)

    def _play(self, action: str) -> None:
        seat = self.player
        self._made += 1
        passes = True
        if action == HOLD:
            self.scores[seat] += self.turn_total
        else:
            rolled = self._rng.randint(1, 6)
            self._last = str(rolled)
            passes = rolled == 1
            if not passes:
                self.turn_total += rolled
        if passes:
            self.turn_total = 0
        if self.scores[seat] >= self._target:
            self._end(1.0 if seat == 0 else -1.0)
        elif self._made == self._moves:
            self._end(winner_return(self.scores[0] - self.scores[1]))
        elif passes:
            self.player = 1 - seat
