"""What the small policy learns the games from: legal moves, several in every information set, in the tiny style."""

from __future__ import annotations

import collections
import random

import pytest

from spade_jax import warmstart
from spade_jax.envs.games import GAMES
from spade_jax.envs.games.demonstrations import demonstrate
from spade_jax.evals import kuhn, tictactoe
from spade_jax.tokens.parsing import last_boxed


@pytest.mark.parametrize("name", GAMES)
def test_every_response_is_a_legal_move_of_a_play_under_way(name):
    turns = set()
    for seed in range(60):
        game, response = demonstrate(name, random.Random(seed))
        assert game.parse(last_boxed(response)) in game.legal_actions()
        turns.add(game.player)
        assert (game.observe(game.player), response) == (
            (again := demonstrate(name, random.Random(seed)))[0].observe(game.player), again[1],
        )  # fmt: skip
    assert turns == {0, 1}


def test_every_information_set_of_kuhn_keeps_both_actions():
    seen = collections.defaultdict(collections.Counter)
    for seed in range(3000):
        game, response = demonstrate("kuhn_poker", random.Random(seed))
        seen[game.cards[game.player], game.history][last_boxed(response)] += 1
    assert set(seen) == set(kuhn.INFORMATION_SETS)
    for counts in seen.values():
        assert min(counts.values()) / counts.total() > 0.15 and len(counts) == 2


def test_tictactoe_is_shown_at_mixed_quality():
    right = []
    for seed in range(400):
        game, response = demonstrate("tictactoe", random.Random(seed))
        right.append(last_boxed(response) in tictactoe.optimal_actions(game.board))
    assert 0.5 < sum(right) / len(right) < 0.95


def test_the_warm_start_shows_them_in_the_tiny_style():
    generator = warmstart.Generator(0, {"game_kuhn_poker": 1.0}, exemplar_share=0.0)
    for index in range(10):
        ((shown, response),) = generator.sample(index)
        assert shown.startswith("kuhn_poker\nRound ") and last_boxed(response).startswith("[")
