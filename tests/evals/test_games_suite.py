"""How two-player play is measured: outcomes by seat, Kuhn's probabilities, tic-tac-toe's best moves."""

from __future__ import annotations

import dataclasses
import math
import random

import numpy as np
import pytest

from spade_jax import compose, structs
from spade_jax.envs.games import GAMES
from spade_jax.envs.games.kuhn_poker import BET, CALL, CHECK, FOLD
from spade_jax.evals import games as suite
from spade_jax.evals import kuhn, tictactoe
from spade_jax.rollout import games
from spade_jax.rollout.players import Answer, ScriptedPlayer, random_player
from spade_jax.tokens import chat
from spade_jax.tokens import tokenizer as tokenizer_lib

MATCH = games.MatchSettings({name: {} for name in GAMES}, 200, (-1.0, 0.0), 16)


@pytest.fixture(scope="module")
def template():
    return chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(compose.ASSETS / "tiny" / compose.TOKENIZER_FILE))


def settings(*names, opponents=("random",), matches=20):
    return suite.Settings(names, opponents, matches, 4, 16, MATCH)


class Writer:
    """A player that writes `say(game)`, with the tokens of its prompt and response."""

    def __init__(self, template, say):
        self._template, self._say, self._answers = template, say, []

    def ask(self, question):
        said = self._say(question.game)
        ids = np.asarray(self._template.tokenizer.encode(said), np.int32)
        prompt = np.asarray(self._template.prompt([("user", question.game.observe(question.seat))]), np.int32)
        zeros = np.zeros(len(ids))
        turn = structs.Turn("", prompt, ids, zeros, zeros, said, said)
        self._answers.append(Answer(question.match, question.seat, said.partition("{")[2].rstrip("}"), turn))

    def answers(self, wait):
        answers, self._answers = self._answers, []
        return answers

    def end(self, match):
        pass


def test_perfect_play_never_loses_and_is_counted_by_seat():
    players = {suite.POLICY: suite.minimax_player(), **suite.scripted_players()}
    rows = suite.table(suite.play_opponents(players, settings("tictactoe", opponents=("random", "minimax")), label="x"))
    assert [(row["opponent"], row["seat"], row["matches"]) for row in rows] == [
        ("random", "both", 20), ("random", 0, 10), ("random", 1, 10),
        ("minimax", "both", 20), ("minimax", 0, 10), ("minimax", 1, 10),
    ]  # fmt: skip
    assert all(row["loss"] == row["invalid"] == 0 for row in rows)
    assert rows[0]["win"] > 10 and rows[3]["draw"] == 20
    assert rows[0]["win_low"] < rows[0]["win"] / 20 < rows[0]["win_high"]
    log = suite.outcome_metrics(rows)
    assert log["eval/tictactoe/minimax/draw"] == 1 and log["eval/tictactoe/random/win"] == rows[0]["win"] / 20
    assert log["eval/tictactoe/random/seat1/win"] == rows[2]["win"] / 10
    # Of 20 in 20, z = 1.96: 20 / (20 + z^2).
    assert log["eval/tictactoe/minimax/draw_low"] == pytest.approx(20 / (20 + 1.96**2), abs=1e-4)
    assert log["eval/tictactoe/minimax/loss_high"] == pytest.approx(1 - 20 / (20 + 1.96**2), abs=1e-4)


def test_minimax_plays_tictactoe_only():
    players = {suite.POLICY: random_player(), **suite.scripted_players()}
    played = suite.play_opponents(players, settings("pig_dice", opponents=("random", "minimax"), matches=4), label="x")
    assert {match.request.players for match in played} == {(suite.POLICY, "random"), ("random", suite.POLICY)}
    assert len({match.request.seed for match in played}) == 2  # both seats of a pair meet the same dice


def test_an_own_invalid_move_is_invalid_and_the_other_s_a_win():
    players = {suite.POLICY: ScriptedPlayer("x", lambda game: ("[nothing]",)), "random": random_player()}
    rows = suite.table(suite.play_opponents(players, settings("kuhn_poker"), label="x"))
    assert rows[0]["invalid"] == 20 and rows[0]["loss"] == 0
    players = {suite.POLICY: players["random"], "random": players[suite.POLICY]}
    assert suite.table(suite.play_opponents(players, settings("kuhn_poker"), label="x"))[0]["win"] == 20


class Dying:
    """An opponent from outside: random moves, until it answers no more."""

    def __init__(self, answers):
        self._random, self._left = random_player(), answers

    def ask(self, question):
        self._random.ask(question)

    def answers(self, wait):
        found = self._random.answers(wait)
        self._left -= len(found)
        failure = "" if self._left > 0 else "endpoint: gone"
        return [dataclasses.replace(answer, failure=failure) for answer in found]

    def end(self, match):
        self._random.end(match)


def test_matches_that_an_opponent_voids_are_counted_beside_the_others():
    players = {suite.POLICY: random_player(), "endpoint": Dying(answers=60)}
    rows = suite.table(
        suite.play_opponents(players, settings("tictactoe", opponents=("endpoint",), matches=40), label="x")
    )
    both, *seats = rows
    assert both["void"] > 0 < both["matches"] and both["void"] + both["matches"] == 40
    assert sum(both[name] for name in suite.OUTCOMES) == both["matches"]
    assert [row["void"] + row["matches"] for row in seats] == [20, 20]
    log = suite.outcome_metrics(rows)
    assert log["eval/tictactoe/endpoint/void"] == both["void"] / 40
    assert log["eval/tictactoe/endpoint/win"] == both["win"] / both["matches"]
    rows = suite.table(suite.play_opponents(players, settings("tictactoe", opponents=("endpoint",)), label="y"))
    assert rows[0]["matches"] == 0 and rows[0]["void"] == 20
    assert math.isnan(suite.outcome_metrics(rows)["eval/tictactoe/endpoint/win"])


def test_kuhn_is_read_from_the_scores_behind_what_was_written(template):
    """The score of an action depends on the words before it: the reading is the mean over them."""
    rng = random.Random(0)
    player = Writer(template, lambda game: f"{rng.choice(['Bold', 'Shy'])}. \\boxed{{{game.legal_actions()[0]}}}")

    def score(pairs):
        out = []
        for prefix, action in pairs:
            strong = template.tokenizer.decode(action) in (BET + "}", CALL + "}")
            bold = "Bold" in template.tokenizer.decode(prefix)
            out.append(math.log((0.9 if strong else 0.1) if bold else 0.5))
        return np.array(out)

    policy, unread = suite.read_kuhn(player, score, template, options={"rounds": 1}, readings=200, label="x")
    assert unread == 0
    for (_, moves), chances in policy.items():
        strong = chances[BET] if BET in chances else chances[CALL]
        assert strong == pytest.approx(0.7, abs=0.06), moves
        assert sum(chances.values()) == pytest.approx(1)
    log = suite.kuhn_metrics(policy, unread)
    assert log["eval/kuhn_poker/exploitability"] == pytest.approx(kuhn.exploitability(policy))


def test_kuhn_shows_the_information_set_and_counts_what_cannot_be_read(template):
    seen = set()

    def say(game):
        seen.add((game.cards[game.player], game.history))
        return "nothing" if CHECK in game.legal_actions() else f"\\boxed{{{FOLD}}}"

    always = Writer(template, say)
    policy, unread = suite.read_kuhn(
        always, lambda pairs: np.zeros(len(pairs)), template, options={}, readings=2, label="x"
    )
    assert seen == set(kuhn.INFORMATION_SETS)
    assert unread == 0.5
    assert kuhn.exploitability(policy) == pytest.approx(11 / 24)


def test_the_share_of_best_moves(template):
    best = Writer(template, lambda game: f"\\boxed{{{tictactoe.optimal_actions(game.board)[0]}}}")
    assert suite.optimal_share(best, positions=50, label="x") == {"eval/tictactoe/optimal": 1.0}
    bad = Writer(template, lambda game: "\\boxed{[9]}")
    assert suite.optimal_share(bad, positions=50, label="x") == {"eval/tictactoe/optimal": 0.0}


def test_meetings_are_balanced_and_rate_the_policies():
    points, played = suite.meet(suite.minimax_player(), random_player(), "tictactoe", settings("tictactoe"), "x")
    assert played == 20 and points > 15
    assert suite.elo_metrics([], 0) == {}
    # Three of four points: odds of 3 to 1 in Elo, up to the prior's one drawn match.
    (rating,) = suite.elo_metrics([[7, 0, 75.0, 100]], 7).values()
    assert rating == pytest.approx(400 * math.log10(75.5 / 25.5))
    assert suite.elo_metrics([[7, 0, 75.0, 100]], 14) == {}
