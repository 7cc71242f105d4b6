"""Ground truth for Kuhn poker: the value and the exploitability of a policy, exactly.

One round, in chips (antes), each seat acting from what it sees: its card and the moves. Kuhn 1950, "A simplified
two-person poker": the game is worth -1/18 to the seat that acts first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from spade_jax.envs.games.kuhn_poker import ACTIONS_AFTER, CARDS, chips_won

InformationSet = tuple[str, tuple[str, ...]]  # (own card, the round's moves)
# Probability of each legal action, by information set.
Policy = Mapping[InformationSet, Mapping[str, float]]

EQUILIBRIUM_VALUE = -1 / 18  # of the seat that acts first
INFORMATION_SETS: tuple[InformationSet, ...] = tuple(itertools.product(CARDS, ACTIONS_AFTER))


def uniform() -> Policy:
    """Every legal action alike; its exploitability is 11/24."""
    return {(card, moves): dict.fromkeys(ACTIONS_AFTER[moves], 0.5) for card, moves in INFORMATION_SETS}


def value(policy: Policy) -> float:
    """What the seat that acts first wins on average where both seats play `policy`, in antes."""

    def walk(cards: tuple[str, str], moves: tuple[str, ...]) -> float:
        won = _won(cards, moves)
        if won is not None:
            return won
        chances = policy[cards[len(moves) % 2], moves]
        return sum(chances[action] * walk(cards, (*moves, action)) for action in ACTIONS_AFTER[moves])

    return sum(walk(cards, ()) for cards in itertools.permutations(CARDS, 2)) / 6


def best_response_value(policy: Policy, seat: int) -> float:
    """What a best response in `seat` (0 acts first) wins on average against `policy`, in antes.

    The responder's chances to hold against each card of the opponent are carried down the tree, so that it decides by
    information set and not by deal.
    """

    def walk(card: str, reach: dict[str, float], moves: tuple[str, ...]) -> float:
        if moves not in ACTIONS_AFTER:
            ordered = ((card, other) if seat == 0 else (other, card) for other in reach)
            sign = 1 - 2 * seat
            return sum(
                sign * weight * _won(cards, moves) for weight, cards in zip(reach.values(), ordered, strict=True)
            )
        actions = ACTIONS_AFTER[moves]
        if len(moves) % 2 == seat:
            return max(walk(card, reach, (*moves, action)) for action in actions)
        return sum(
            walk(card, {other: weight * policy[other, moves][action] for other, weight in reach.items()},
                 (*moves, action))
            for action in actions
        )  # fmt: skip

    return sum(walk(card, {other: 1 / 6 for other in CARDS if other != card}, ()) for card in CARDS)


def exploitability(policy: Policy) -> float:
    """Mean over the seats of what a best response wins against `policy`, in antes per round; 0 in equilibrium."""
    return (best_response_value(policy, 0) + best_response_value(policy, 1)) / 2


def _won(cards: tuple[str, str], moves: tuple[str, ...]) -> int | None:
    return chips_won(moves, CARDS.index(cards[0]) > CARDS.index(cards[1]))
