"""Exploitability, minimax, intervals and ratings against values found in other ways."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
import pytest

from spade_jax.envs.games.kuhn_poker import ACTIONS_AFTER, BET, CALL, CARDS, CHECK, FOLD, chips_won
from spade_jax.envs.games.tictactoe import TicTacToe
from spade_jax.evals import kuhn, ratings, tictactoe


def equilibrium(alpha: float) -> kuhn.Policy:
    """Kuhn's family: alpha in [0, 1/3] is how often the first seat bets a jack."""
    aggressive = {
        ("J", ()): alpha, ("Q", ()): 0, ("K", ()): 3 * alpha,
        ("J", (CHECK,)): 1 / 3, ("Q", (CHECK,)): 0, ("K", (CHECK,)): 1,
        ("J", (BET,)): 0, ("Q", (BET,)): 1 / 3, ("K", (BET,)): 1,
        ("J", (CHECK, BET)): 0, ("Q", (CHECK, BET)): alpha + 1 / 3, ("K", (CHECK, BET)): 1,
    }  # fmt: skip
    policy = {}
    for (card, moves), p in aggressive.items():
        strong, weak = (BET, CHECK) if CHECK in ACTIONS_AFTER[moves] else (CALL, FOLD)
        policy[card, moves] = {strong: p, weak: 1 - p}
    return policy


def matrix_game_value(policy: kuhn.Policy, seat: int) -> float:
    """The best response's value by trying all 64 pure strategies of the seat: an independent route."""
    mine = [(card, moves) for card, moves in kuhn.INFORMATION_SETS if len(moves) % 2 == seat]
    best = -math.inf
    for choice in itertools.product((0, 1), repeat=len(mine)):
        pure = dict(policy)
        for (card, moves), pick in zip(mine, choice, strict=True):
            actions = ACTIONS_AFTER[moves]
            pure[card, moves] = {actions[pick]: 1.0, actions[1 - pick]: 0.0}
        best = max(best, kuhn.value(pure) * (1 - 2 * seat))
    return best


def random_policy(seed: int) -> kuhn.Policy:
    rng = random.Random(seed)
    policy = {}
    for card, moves in kuhn.INFORMATION_SETS:
        p = rng.choice((0.0, 1.0, rng.random()))
        policy[card, moves] = dict(zip(ACTIONS_AFTER[moves], (p, 1 - p), strict=True))
    return policy


@pytest.mark.parametrize("alpha", [0, 1 / 9, 1 / 3])
def test_equilibria_cannot_be_exploited(alpha):
    assert kuhn.exploitability(equilibrium(alpha)) == pytest.approx(0, abs=1e-12)
    assert kuhn.value(equilibrium(alpha)) == pytest.approx(kuhn.EQUILIBRIUM_VALUE)


def test_uniform_play_is_exploited_by_eleven_twenty_fourths():
    assert kuhn.exploitability(kuhn.uniform()) == pytest.approx(11 / 24)
    assert kuhn.value(kuhn.uniform()) == pytest.approx(1 / 8)


@pytest.mark.parametrize("seed", range(6))
def test_best_response_against_every_pure_strategy(seed):
    policy = random_policy(seed)
    for seat in (0, 1):
        assert kuhn.best_response_value(policy, seat) == pytest.approx(matrix_game_value(policy, seat))
    assert kuhn.exploitability(policy) >= -1e-12


def test_there_are_twelve_information_sets():
    assert len(kuhn.INFORMATION_SETS) == 12 == len(CARDS) * len(ACTIONS_AFTER)


def test_tictactoe_is_a_draw_and_has_4520_positions_to_move_in():
    assert tictactoe.minimax("." * 9) == 0
    assert len(tictactoe.positions()) == 4520
    assert tictactoe.optimal_actions("." * 9) == tuple(f"[{cell}]" for cell in range(9))


@pytest.mark.parametrize(
    ("board", "value", "actions"),
    [
        ("OO.XX....", 1, ("[2]",)),  # win at once
        ("OO..X....", 0, ("[2]",)),  # block
        ("O...X...O", 0, ("[1]", "[3]", "[5]", "[7]")),  # an edge, or a corner loses to a fork
        ("OOOXX....", -1, ()),
    ],
)
def test_tictactoe_positions_by_hand(board, value, actions):
    assert tictactoe.minimax(board) == value
    assert tictactoe.optimal_actions(board) == actions


def test_minimax_never_loses_to_random_play():
    for seed in range(200):
        game, rng, perfect = TicTacToe(seed), random.Random(seed), seed % 2
        while game.player is not None:
            actions = tictactoe.optimal_actions(game.board) if game.player == perfect else game.legal_actions()
            assert tictactoe.to_move(game.board) == game.player
            game.step(rng.choice(actions))
        assert game.returns()[perfect] >= 0


def test_wilson_interval_by_its_equation():
    """Its ends p solve (x/n - p)^2 = z^2 p (1 - p) / n."""
    for count, total in ((0, 10), (3, 10), (10, 10), (480, 1000)):
        for end in ratings.wilson_interval(count, total):
            assert (count / total - end) ** 2 == pytest.approx(1.959964**2 * end * (1 - end) / total, abs=1e-9)
    assert ratings.wilson_interval(0, 0) == (0.0, 1.0)
    low, high = ratings.wilson_interval(50, 100)
    assert (round(low, 4), round(high, 4)) == (0.4038, 0.5962)


def test_elo_of_two_players_is_their_odds():
    score = np.array([[0.0, 75.0], [25.0, 0.0]])
    first, second = ratings.elo(score, score + score.T, prior_games=0)
    assert first - second == pytest.approx(400 * math.log10(3))
    assert first + second == pytest.approx(0)


def test_elo_finds_the_ratings_that_made_the_games():
    truth = np.array([-150.0, 0.0, 50.0, 100.0])
    expected = 1 / (1 + 10 ** ((truth[None] - truth[:, None]) / 400))
    games = 1000.0 * (1 - np.eye(4))
    np.testing.assert_allclose(ratings.elo(expected * games, games, prior_games=0), truth - truth.mean(), atol=1e-6)


def test_elo_of_a_clean_sweep_is_finite_and_of_strangers_is_equal():
    score = np.array([[0.0, 20.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    rating = ratings.elo(score, score + score.T)
    assert np.isfinite(rating).all() and rating[0] > 200 > rating[2] > rating[1]
    with pytest.raises(ValueError, match="add up"):
        ratings.elo(score, score)


def settled(coefficient, steps, rate=2.0):
    """The policy at which exact gradients of both seats' returns come to rest, and how far the last steps moved it.

    The returns are chips over the most that can be won, and the loss has `coefficient` times the divergence of the
    policy from the uniform one, whose gradient in the logit is (p - 1/2): what the learner's k3 term comes to.
    """
    logit = dict.fromkeys(kuhn.INFORMATION_SETS, 0.0)
    seen = []
    for _ in range(steps):
        first = {at: 1 / (1 + np.exp(-value)) for at, value in logit.items()}
        gradient, reach = dict.fromkeys(logit, 0.0), dict.fromkeys(logit, 0.0)

        def walk(cards, moves, chance, first=first, gradient=gradient, reach=reach):
            won = chips_won(moves, CARDS.index(cards[0]) > CARDS.index(cards[1]))
            if won is not None:
                return won / 2
            at, seat = (cards[len(moves) % 2], moves), len(moves) % 2
            p, (one, other) = first[at], ACTIONS_AFTER[moves]
            reach[at] += chance
            a = walk(cards, (*moves, one), chance * p)
            b = walk(cards, (*moves, other), chance * (1 - p))
            gradient[at] += chance * p * (1 - p) * (a - b) * (1 - 2 * seat)
            return p * a + (1 - p) * b

        for cards in itertools.permutations(CARDS, 2):
            walk(cards, (), 1 / 6)
        for at in logit:
            logit[at] += rate * (gradient[at] - coefficient * reach[at] * (first[at] - 0.5))
        seen.append(first)
    policy = {at: dict(zip(ACTIONS_AFTER[at[1]], (p, 1 - p), strict=True)) for at, p in first.items()}
    return policy, max(abs(seen[-1][at] - seen[-(steps // 4)][at]) for at in logit)


def test_self_play_with_a_magnet_settles_near_the_equilibrium():
    """Why `configs/spiral_tiny.py` keeps the policy near its start; without that, self-play goes round."""
    for coefficient, exploitability in ((0.1, 0.071), (0.05, 0.038)):
        policy, moved = settled(coefficient, 3000)
        assert moved < 1e-2
        assert abs(kuhn.exploitability(policy) - exploitability) < 0.003, coefficient
    _, moved = settled(0.0, 3000)
    assert moved > 0.2
