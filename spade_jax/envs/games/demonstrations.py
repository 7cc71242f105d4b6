"""Plays of partial skill in words, which a small policy learns the games' form from before self-play.

The moves are legal and of mixed quality, and every information set keeps several of them, so that self-play has
something to choose from.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

from spade_jax.envs.games import Game, make_game
from spade_jax.envs.games.kuhn_poker import BET, CALL, KuhnPoker
from spade_jax.envs.games.liars_dice import CALL as CALL_LIE
from spade_jax.envs.games.liars_dice import LiarsDice
from spade_jax.envs.games.negotiation import ACCEPT, SimpleNegotiation
from spade_jax.envs.games.pig_dice import HOLD, PigDice
from spade_jax.envs.games.snake import MOVES, Snake
from spade_jax.envs.games.tictactoe import TicTacToe, winner
from spade_jax.structs import boxed

_AGGRESSION = {"J": 0.35, "Q": 0.5, "K": 0.65}  # how often a bet is made or called


def demonstrate(name: str, rng: random.Random) -> tuple[Game, str]:
    """(a play in the midst, the response of the seat to move), drawn from a play of scripted players."""
    game = make_game(name, rng.randrange(1 << 30), **_options(name, rng))
    choose: Callable[[Game, random.Random], str | None] = _CHOICES.get(name, lambda game, rng: None)
    made = 0
    while game.player is not None:
        action = choose(game, rng) or rng.choice(game.legal_actions())
        made += 1
        if rng.random() < 1 / made:  # every move of the play is as likely to be the one that is kept
            kept = copy.deepcopy(game), action
        game.step(action)
    before, action = kept
    return before, _response(action, rng)


def _options(name: str, rng: random.Random) -> dict[str, int]:
    return {"rounds": rng.choice((1, 1, 2, 3, 5))} if name == KuhnPoker.name else {}


def _response(action: str, rng: random.Random) -> str:
    reasons = rng.sample(_REASONS, rng.choice((0, 0, 1, 1, 2)))
    return " ".join([*reasons, boxed(action)])


_REASONS = (
    "I look at what I know.",
    "I want to win this.",
    "Let me compare my options.",
    "The opponent may do the same.",
    "I think about the next move.",
    "This is a fair risk.",
)


def _kuhn(game: KuhnPoker, rng: random.Random) -> str:
    legal = game.legal_actions()
    strong = BET if BET in legal else CALL
    (weak,) = set(legal) - {strong}
    return strong if rng.random() < _AGGRESSION[game.cards[game.player]] else weak


def _tictactoe(game: TicTacToe, rng: random.Random) -> str | None:
    if rng.random() < 0.5:
        return None
    for mark in ("OX"[game.player], "XO"[game.player]):  # win, else block
        for action in game.legal_actions():
            cell = int(action[1:-1])
            if winner(game.board[:cell] + mark + game.board[cell + 1 :]):
                return action
    return "[4]" if "[4]" in game.legal_actions() else None


def _negotiation(game: SimpleNegotiation, rng: random.Random) -> str | None:
    value_wood, value_gold = game.values[game.player]
    if game.pending:
        given, resource, asked = game.pending
        mine = (value_wood, value_gold)
        gain = given * mine[resource] - asked * mine[1 - resource]
        if rng.random() < (0.6 if gain > 0 else 0.2):
            return ACCEPT
    offers = [action for action in game.legal_actions() if action.startswith("[Offer")]
    if not offers or rng.random() < 0.2:
        return None
    # Mostly what one values less for what one values more.
    wanted = "Wood ->" if (value_wood < value_gold) == (rng.random() < 0.7) else "Gold ->"
    return rng.choice([offer for offer in offers if wanted in offer] or offers)


def _snake(game: Snake, rng: random.Random) -> str | None:
    if rng.random() < 0.3:
        return None
    (x, y), bodies = game.snakes[game.player][0], {*game.snakes[0], *game.snakes[1]}
    safe = [
        move
        for move, (dx, dy) in MOVES.items()
        if 0 <= x + dx < game.size and 0 <= y + dy < game.size and (x + dx, y + dy) not in bodies
    ]
    return rng.choice(safe) if safe else None


def _pig_dice(game: PigDice, rng: random.Random) -> str | None:
    return HOLD if game.turn_total and rng.random() < game.turn_total / 30 else "[roll]"


def _liars_dice(game: LiarsDice, rng: random.Random) -> str | None:
    legal = game.legal_actions()
    if CALL_LIE in legal and rng.random() < 0.35:
        return CALL_LIE
    bids = [action for action in legal if action != CALL_LIE]
    return rng.choice(bids[:8]) if bids else None


_CHOICES = {
    KuhnPoker.name: _kuhn,
    TicTacToe.name: _tictactoe,
    SimpleNegotiation.name: _negotiation,
    Snake.name: _snake,
    PigDice.name: _pig_dice,
    LiarsDice.name: _liars_dice,
}
