"""The TextArena adapter, on a module that has TextArena's interface and its faults."""

from __future__ import annotations

import random
import sys
import types

import numpy as np
import pytest

from spade_jax.envs.games import make_game
from spade_jax.rollout import games
from spade_jax.rollout.players import ScriptedPlayer


class GuessNumber:
    """Seats guess in turns a number that the global generators drew; the history survives a reset."""

    history: list[str] = []

    def reset(self, num_players, seed):
        assert num_players == 2
        random.seed(seed)
        self.number, self.turn = random.randint(1, 3) + int(np.random.randint(0, 2)), 0

    def get_observation(self):
        return self.turn % 2, f"Guess 1 to 4. {' '.join(self.history)}"

    def step(self, action):
        self.history = [*self.history, action]
        random.random()  # a draw in the midst of the play
        self.won = action == f"[{self.number}]"
        self.turn += 1
        return self.won or self.turn == 8, {}

    def close(self):
        winner = (self.turn - 1) % 2
        return ({winner: 1, 1 - winner: -1} if self.won else {0: 0, 1: 0}), {}


@pytest.fixture(autouse=True)
def module(monkeypatch):
    def make(name):
        if name != "Guess-v0":
            raise ValueError(f"Environment {name} not found in registry.")
        return GuessNumber()

    monkeypatch.setitem(sys.modules, "textarena", types.SimpleNamespace(make=make))


def play(seed, others=()):
    """Moves of one play; `others` are moved in between."""
    game, seen, guess = make_game("textarena:Guess-v0", seed), [], 0
    while game.player is not None:
        seen.append((game.player, game.observe(game.player)))
        game.step(f"[{guess % 4 + 1}]")
        guess += 1
        for other in others:
            if other.player is not None:
                other.step("[9]")
    return seen, game.returns()


def test_plays_interleave_and_the_global_generators_stand_still():
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()
    alone = [play(seed) for seed in range(8)]
    mixed = [play(seed, [make_game("textarena:Guess-v0", 100 + i) for i in range(3)]) for seed in range(8)]
    assert alone == mixed and len({str(outcome) for outcome in alone}) > 1
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert alone[0][0][0] == (0, "Guess 1 to 4. ")  # no history of an earlier play


def test_seats_returns_and_parsing():
    game = make_game("textarena:Guess-v0", 0)
    assert game.name == "textarena:Guess-v0" and game.player == 0
    assert game.observe(1) == ""
    assert game.parse(" 3 ") == "[3]" and game.parse("[3]") == "[3]"
    assert game.parse("") is None and game.parse("x" * 500) is None and game.parse("a\x00b") is None
    seen, (first, second) = play(0)
    winner = seen[-1][0]
    assert (first, second) == ((1.0, -1.0) if winner == 0 else (-1.0, 1.0))


def test_matches_of_it_are_played_like_any_other():
    player = ScriptedPlayer("x", lambda game: ("1", "2", "3", "4"))
    requests = [games.MatchRequest(f"m/{i}", "textarena:Guess-v0", i, ("a", "a")) for i in range(10)]
    matches = games.play_matches({"a": player}, requests, games.MatchSettings({}, 20, (-1.0, 0.0), 4))
    assert {match.ending for match in matches} == {games.BY_RULES}


def test_what_cannot_be_had_is_said(monkeypatch):
    with pytest.raises(ValueError, match="TextArena has no 'Nothing-v0' for two players"):
        make_game("textarena:Nothing-v0", 0)
    monkeypatch.setitem(sys.modules, "textarena", None)
    with pytest.raises(ValueError, match=r"need the package textarena; install spade_jax\[textarena\]"):
        make_game("textarena:Guess-v0", 0)
