"""Kuhn poker: three cards, one bet, over several rounds."""

from __future__ import annotations

from spade_jax.envs.games.base import Game, winner_return

CARDS = "JQK"  # in rising order
PAYOFFS = ("winner", "margin")

CHECK, BET, CALL, FOLD = "[check]", "[bet]", "[call]", "[fold]"
ACTIONS_AFTER = {(): (CHECK, BET), (CHECK,): (CHECK, BET), (BET,): (CALL, FOLD), (CHECK, BET): (CALL, FOLD)}


def chips_won(history: tuple[str, ...], first_is_higher: bool, ante: int = 1, bet: int = 1) -> int | None:
    """What the seat that acts first in a round wins; None where the round is not over.

    Args:
      history: the round's actions.
      first_is_higher: whether its card is the higher one.
    """
    if history in ACTIONS_AFTER:
        return None
    if history[-1] == FOLD:
        return ante if len(history) == 2 else -ante
    stake = ante if history == (CHECK, CHECK) else ante + bet
    return stake if first_is_higher else -stake


class KuhnPoker(Game):
    """Args:
      seed: of the cards.
      rounds: dealt in one play; the seats take turns to act first.
      payoff: "winner" pays 1 to the chip leader; "margin" pays the chips won, over the most that can be won, so
        that a play is worth what its rounds are.
      compat: the quirks of the original implementation, for comparison only: a bet moves no chips, and who wins
        the last round wins the play.

    Attributes:
      chips: of both seats; their sum never changes.
      cards: of both seats in this round.
      history: the round's actions.
      starter: the seat that acts first in this round.
    """

    name = "kuhn_poker"

    def __init__(self, seed: int, *, rounds: int = 5, payoff: str = "winner", compat: bool = False):
        super().__init__(seed)
        if rounds < 1:
            raise ValueError(f"games.kuhn_poker.rounds={rounds} deals no cards; use at least 1")
        if payoff not in PAYOFFS:
            raise ValueError(f"games.kuhn_poker.payoff={payoff!r} is unknown; use {' or '.join(PAYOFFS)}")
        self._rounds, self._payoff, self._compat = rounds, payoff, compat
        self._bet = 0 if compat else 1
        self.chips = [2 * rounds, 2 * rounds]  # enough to lose every round
        self._results: list[int] = []  # what the first seat won in each round
        self._deal()

    def _deal(self) -> None:
        self.cards = tuple(self._rng.sample(CARDS, 2))
        self.history: tuple[str, ...] = ()
        self.starter = self.player = len(self._results) % 2

    def rules(self) -> str:
        return (
            f"Kuhn poker, {self._rounds} round{'s' * (self._rounds > 1)}. Cards: J < Q < K, one for each player. Each "
            "antes 1 chip; a bet is 1 chip. Who acts first takes turns. Answer [check] or [bet]; to a bet, [call] or "
            "[fold]. The higher card wins the pot, unless a player folds. The most chips win."
        )

    def observe(self, player: int) -> str:
        names = ("you", "opponent") if player == self.starter else ("opponent", "you")
        moves = ", ".join(f"{names[i % 2]} {action}" for i, action in enumerate(self.history)) or "none"
        text = (
            f"Round {len(self._results) + (self.player is not None)} of {self._rounds}. Your card: "
            f"{self.cards[player]}. Chips: you {self.chips[player]}, opponent {self.chips[1 - player]}. Moves: {moves}."
        )
        if self._results:
            won = [result if player == 0 else -result for result in self._results]
            text += " You won before: " + " ".join(f"{chips:+d}" for chips in won) + "."
        return text

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.player is None else ACTIONS_AFTER[self.history]

    def _play(self, action: str) -> None:
        self.history += (action,)
        higher = CARDS.index(self.cards[self.starter]) > CARDS.index(self.cards[1 - self.starter])
        won = chips_won(self.history, higher, bet=self._bet)
        if won is None:
            self.player = 1 - self.player
            return
        self.chips[self.starter] += won
        self.chips[1 - self.starter] -= won
        self._results.append(won if self.starter == 0 else -won)
        if len(self._results) < self._rounds:
            self._deal()
            return
        margin = self.chips[0] - self.chips[1]
        if self._compat:
            self._end(winner_return(self._results[-1]))
        elif self._payoff == "margin":
            self._end(margin / (4 * self._rounds))
        else:
            self._end(winner_return(margin))
