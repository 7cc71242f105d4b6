"""Simple negotiation: two resources, private values, offers until the turns run out."""

from __future__ import annotations

import re

from spade_jax.envs.games.base import Game, normalise, winner_return

RESOURCES = ("Wood", "Gold")
ACCEPT, DENY = "[Accept]", "[Deny]"
_OFFER = re.compile(r"offer ?: ?(\d{1,3}) (wood|gold) ?-> ?(\d{1,3}) (wood|gold)", re.ASCII)

Offer = tuple[int, int, int]  # units given, which resource is given, units asked for of the other one


def offer_action(offer: Offer) -> str:
    given, resource, asked = offer
    return f"[Offer: {given} {RESOURCES[resource]} -> {asked} {RESOURCES[1 - resource]}]"


class SimpleNegotiation(Game):
    """Args:
      seed: of holdings and values.
      turns: of both seats together.

    Attributes:
      holdings: units of each resource, by seat; what is there is never created nor lost.
      values: worth of one unit of each resource, by seat; private.
      pending: the offer that the seat to move may accept.
    """

    name = "negotiation"

    def __init__(self, seed: int, *, turns: int = 10):
        super().__init__(seed)
        if turns < 2:
            raise ValueError(f"games.negotiation.turns={turns} lets nobody answer; use at least 2")
        self.holdings = [[self._rng.randint(5, 10) for _ in RESOURCES] for _ in range(2)]
        self.values = [[self._rng.randint(2, 12) for _ in RESOURCES] for _ in range(2)]
        self._worth = [self._worth_of(seat) for seat in range(2)]
        self._turns, self._moves = turns, []
        self.pending: Offer | None = None

    def rules(self) -> str:
        return (
            f"Negotiation over {self._turns} turns. Both players hold Wood and Gold, and each values them differently "
            "and in private. Trade to raise what your holdings are worth to you; the larger gain wins. Answer with an "
            "offer that says what you give and what you ask for, such as [Offer: 3 Wood -> 2 Gold], with [Accept] or "
            "[Deny] to the offer made to you; [Deny] also passes."
        )

    def observe(self, player: int) -> str:
        def listed(amounts: list[int]) -> str:
            return ", ".join(f"{amount} {name}" for amount, name in zip(amounts, RESOURCES, strict=True))

        values = ", ".join(f"{name} {value}" for name, value in zip(RESOURCES, self.values[player], strict=True))
        moves = ", ".join(f"{'you' if seat == player else 'opponent'} {action}" for seat, action in self._moves)
        return (
            f"Turn {min(len(self._moves) + 1, self._turns)} of {self._turns}. "
            f"You hold {listed(self.holdings[player])}; "
            f"the opponent holds {listed(self.holdings[1 - player])}. A unit is worth to you: {values}. "
            f"Your gain: {self.gain(player):+d}. Moves: {moves or 'none'}."
        )

    def gain(self, seat: int) -> int:
        """What the seat's holdings are worth to it now, less what they were worth at first."""
        return self._worth_of(seat) - self._worth[seat]

    def _worth_of(self, seat: int) -> int:
        return sum(units * value for units, value in zip(self.holdings[seat], self.values[seat], strict=True))

    def legal_actions(self) -> tuple[str, ...]:
        if self.player is None:
            return ()
        mine, theirs = self.holdings[self.player], self.holdings[1 - self.player]
        offers = [
            offer_action((given, resource, asked))
            for resource in range(2)
            for given in range(1, mine[resource] + 1)
            for asked in range(1, theirs[1 - resource] + 1)
        ]
        return ((ACCEPT,) if self.pending else ()) + (DENY, *offers)

    def parse(self, command: str) -> str | None:
        text = normalise(command)
        if text is None or self.player is None:
            return None
        if text == "deny" or (text == "accept" and self.pending):
            return DENY if text == "deny" else ACCEPT
        match = _OFFER.fullmatch(text)
        if not match or match[2] == match[4]:
            return None
        offer = (int(match[1]), [name.lower() for name in RESOURCES].index(match[2]), int(match[3]))
        mine, theirs = self.holdings[self.player], self.holdings[1 - self.player]
        possible = 1 <= offer[0] <= mine[offer[1]] and 1 <= offer[2] <= theirs[1 - offer[1]]
        return offer_action(offer) if possible else None

    def _play(self, action: str) -> None:
        seat = self.player
        if action == ACCEPT:
            given, resource, asked = self.pending
            for taker, units in ((seat, 1), (1 - seat, -1)):
                self.holdings[taker][resource] += units * given
                self.holdings[taker][1 - resource] -= units * asked
        match = _OFFER.fullmatch(normalise(action))
        self.pending = None
        if match:
            self.pending = (int(match[1]), [name.lower() for name in RESOURCES].index(match[2]), int(match[3]))
        self._moves.append((seat, action))
        if len(self._moves) == self._turns:
            self._end(winner_return(self.gain(0) - self.gain(1)))
        else:
            self.player = 1 - seat
