"""The two-player games by name. A new game is a file of this folder and a line here."""

from __future__ import annotations

from spade_jax.envs.games import textarena
from spade_jax.envs.games.base import SEATS, Game
from spade_jax.envs.games.kuhn_poker import KuhnPoker
from spade_jax.envs.games.liars_dice import LiarsDice
from spade_jax.envs.games.negotiation import SimpleNegotiation
from spade_jax.envs.games.pig_dice import PigDice
from spade_jax.envs.games.snake import Snake
from spade_jax.envs.games.tictactoe import TicTacToe
from spade_jax.envs.games.truth_and_deception import TruthAndDeception

GAMES: dict[str, type[Game]] = {
    game.name: game for game in (TicTacToe, KuhnPoker, SimpleNegotiation, Snake, PigDice, TruthAndDeception, LiarsDice)
}

__all__ = ["GAMES", "SEATS", "Game", "make_game"]


def make_game(name: str, seed: int, **options: object) -> Game:
    """A play of a registered game, with the game's own options, or of one of TextArena's, named "textarena:ID".

    Raises:
      ValueError: no game of this name, or an option's value is out of range.
    """
    if name.startswith(textarena.PREFIX):
        return textarena.TextArenaGame(seed, name.removeprefix(textarena.PREFIX))
    if name not in GAMES:
        raise ValueError(
            f"selfplay.games has {name!r}, which is no game; use some of {', '.join(GAMES)}, or {textarena.PREFIX}ID"
        )
    return GAMES[name](seed, **options)
