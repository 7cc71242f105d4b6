"""Liar's dice: bid on all dice on the table, or call the bid a lie."""

from __future__ import annotations

import re

from spade_jax.envs.games.base import Game, normalise

CALL = "[Call]"
FACES = 6
_BID = re.compile(r"bid ?: ?(\d{1,2}) ?, ?([1-6])", re.ASCII)


class LiarsDice(Game):
    """A called bid of q dice of a face is a lie where fewer than q show it; who is wrong loses a die.

    Args:
      seed: of the dice.
      dice: of each seat at first.

    Attributes:
      dice: what each seat has rolled; private.
      bid: (quantity, face), None at the start of a round.
    """

    name = "liars_dice"

    def __init__(self, seed: int, *, dice: int = 3):
        super().__init__(seed)
        if not 1 <= dice <= 20:
            raise ValueError(f"games.liars_dice.dice={dice} is out of range; use 1 to 20")
        self._counts = [dice, dice]
        self._last_round: tuple[int, int, int] | None = None  # dice that showed the face, face, who lost a die
        self._roll()

    def _roll(self) -> None:
        self.dice = [sorted(self._rng.randint(1, FACES) for _ in range(count)) for count in self._counts]
        self.bid: tuple[int, int] | None = None
        self._bids: list[tuple[int, str]] = []

    def rules(self) -> str:
        return (
            "Liar's dice. Each player sees only their own dice. Bid how many dice of both players show a face, such as "
            "[Bid: 2, 5] for two fives; a bid must raise the quantity, or the face at the same quantity. Or [Call] the "
            "bid a lie: if fewer dice show the face, the bidder loses a die, else the caller does. Who has no dice "
            "left loses."
        )

    def observe(self, player: int) -> str:
        bids = ", ".join(f"{'you' if seat == player else 'opponent'} {action}" for seat, action in self._bids)
        last = ""
        if self._last_round:
            shown, face, loser = self._last_round
            last = f"Last round {shown} dice showed {face}: {'you' if loser == player else 'opponent'} lost a die. "
        return (
            f"{last}Your dice: {' '.join(map(str, self.dice[player])) or 'none'}. The opponent has "
            f"{self._counts[1 - player]} dice. Bids: {bids or 'none'}."
        )

    def legal_actions(self) -> tuple[str, ...]:
        if self.player is None:
            return ()
        least = self.bid or (0, FACES)
        bids = [
            f"[Bid: {quantity}, {face}]"
            for quantity in range(1, sum(self._counts) + 1)
            for face in range(1, FACES + 1)
            if (quantity, face) > least
        ]
        return ((CALL,) if self.bid else ()) + tuple(bids)

    def _play(self, action: str) -> None:
        seat = self.player
        if action != CALL:
            match = _BID.fullmatch(normalise(action))
            self.bid = (int(match[1]), int(match[2]))
            self._bids.append((seat, action))
            self.player = 1 - seat
            return
        quantity, face = self.bid
        shown = sum(dice.count(face) for dice in self.dice)
        loser = 1 - seat if shown < quantity else seat
        self._counts[loser] -= 1
        self._last_round = (shown, face, loser)
        if self._counts[loser]:
            self._roll()
            self.player = loser
        else:
            self.dice[loser] = []
            self._end(-1.0 if loser == 0 else 1.0)
