"""Matches: seats, endings, privacy, contexts, and the same bits whatever the number of slots."""

from __future__ import annotations

import collections
import dataclasses
import random
import time

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.envs.games import GAMES, make_game
from spade_jax.rollout import games
from spade_jax.rollout.players import Answer, PolicyPlayer, PolicySettings, command_of, random_player
from spade_jax.sampler import Response, SamplingConfig

OPTIONS = {name: {} for name in GAMES}


def settings(**changes):
    return games.MatchSettings(
        **{"options": OPTIONS, "max_moves": 200, "invalid_returns": (-1.0, 0.0), "live": 8, **changes}
    )


def requests(game, count, players=("a", "a"), label="test"):
    return [games.MatchRequest(f"{label}/{game}/{i}", game, i, players) for i in range(count)]


class ScriptedEngine:
    """The sampler's interface; writes what `reply(prompt text)` says, a few answers at a time, in an odd order."""

    def __init__(self, template, reply):
        self._template, self._reply, self._rng = template, reply, random.Random(0)
        self._next, self._pending = 0, {}
        self.prompts: dict[str, list[str]] = collections.defaultdict(list)  # by conversation id
        self._names, self.most_open = {}, 0

    def open(self, conversation_id, sampling, group=None):
        self._next += 1
        self._names[self._next] = conversation_id
        self.most_open = max(self.most_open, len(self._names))
        return self._next

    def submit(self, handle, tokens, max_new_tokens):
        assert handle in self._names and handle not in self._pending
        text = self._template.tokenizer.decode(tokens)
        self.prompts[self._names[handle]].append(text)
        self._pending[handle] = self._reply(self._names[handle], text)

    def close(self, handle):
        del self._names[handle]
        self._pending.pop(handle, None)

    @property
    def busy(self):
        return bool(self._pending)

    def step(self):
        done = self._rng.sample(sorted(self._pending), max(1, len(self._pending) // 2))
        return [self._response(handle, self._pending.pop(handle)) for handle in sorted(done)]

    def _response(self, handle, text):
        tokens = [] if text is None else [*self._template.tokenizer.encode(text), self._template.tokenizer.end_id]
        ones = np.ones(len(tokens))
        return Response(
            handle, np.array(tokens, np.int32), -ones.astype(np.float32), ones.astype(np.int32), True, False
        )


def policy(engine, template, context="turn"):
    return PolicyPlayer(engine, template, PolicySettings(SamplingConfig(), 16, "full", context))


def legal_reply(name, text):
    """Plays tic-tac-toe by reading the board out of the prompt, with a secret beside the move."""
    digits = [word for line in text.splitlines()[-5:] for word in line.split() if word.isdigit()]
    return f"SECRET of {name}. \\boxed{{[{random.Random(text).choice(digits)}]}}"


@pytest.mark.parametrize("context", ["turn", "conversation"])
def test_nothing_that_a_seat_writes_reaches_the_other(template, context):
    engine = ScriptedEngine(template, legal_reply)
    matches = games.play_matches({"a": policy(engine, template, context)}, requests("tictactoe", 12), settings())
    assert all(match.ending == games.BY_RULES for match in matches)
    shown = [prompt for prompts in engine.prompts.values() for prompt in prompts]
    assert len(shown) >= 60 and not any("SECRET" in prompt for prompt in shown)
    for match in matches:
        for seat, turns in enumerate(match.turns):
            assert all(f"SECRET of {match.request.id}/{seat}" in turn.response for turn in turns)


def test_contexts_show_the_rules_once_or_at_every_move(template):
    rules = make_game("tictactoe", 0).rules()
    for context, times in (("turn", None), ("conversation", 1)):
        engine = ScriptedEngine(template, legal_reply)
        (match,) = games.play_matches({"a": policy(engine, template, context)}, requests("tictactoe", 1), settings())
        texts = [turn.observation for turn in match.turns[0]]
        assert sum(rules in text for text in texts) == (len(texts) if times is None else 1)
        assert len(engine.prompts) == (len(match.moves) if context == "turn" else 2)
        assert not engine._names  # every conversation was closed


def test_at_most_so_many_matches_are_under_way(template):
    engine = ScriptedEngine(template, legal_reply)
    games.play_matches({"a": policy(engine, template, "conversation")}, requests("tictactoe", 20), settings(live=3))
    assert engine.most_open == 6


def test_every_turn_is_a_trajectory_or_every_conversation_is(template):
    engine = ScriptedEngine(template, legal_reply)
    (match,) = games.play_matches({"a": policy(engine, template)}, requests("tictactoe", 1), settings())
    episode = match.episode(0)
    by_turn = games.trajectories(episode, 5, 1.0, by_turn=True)
    (whole,) = games.trajectories(episode, 5, 1.0, by_turn=False)
    assert len(by_turn) == len(episode.turns)
    np.testing.assert_array_equal(np.concatenate([t.tokens for t in by_turn]), whole.tokens)
    assert {t.group for t in by_turn} == {5} and {t.episode_return for t in by_turn} == {match.returns[0]}
    assert sum(t.loss_mask.sum() for t in by_turn) == sum(len(turn.response_tokens) for turn in episode.turns)


@pytest.mark.parametrize("text", ["\\boxed{[9]}", "no move at all", "\\boxed{[0] [1]}", "", "\\boxed{" * 500])
def test_an_invalid_move_ends_the_match_at_the_offender_s_cost(template, text):
    engine = ScriptedEngine(template, lambda name, prompt: text)
    players = {"a": policy(engine, template), "random": random_player()}
    (match,) = games.play_matches(players, requests("tictactoe", 1, ("random", "a")), settings())
    assert (match.ending, match.offender, match.returns) == (games.BY_INVALID, 1, (0.0, -1.0))
    assert match.episode(1).status == structs.FAILURE and match.episode(0).status == structs.SUCCESS
    compat = settings(invalid_returns=(-1.5, 0.5))
    (match,) = games.play_matches(players, requests("tictactoe", 1, ("random", "a"), "compat"), compat)
    assert match.returns == (0.5, -1.5)


def test_a_full_context_and_too_many_moves_decide_nothing(template):
    engine = ScriptedEngine(template, lambda name, prompt: None)
    (match,) = games.play_matches({"a": policy(engine, template)}, requests("tictactoe", 1), settings())
    assert (match.ending, match.returns, match.episode(0).status) == (games.NO_CONTEXT, (0.0, 0.0), "truncated")
    (match,) = games.play_matches({"a": random_player()}, requests("pig_dice", 1), settings(max_moves=5))
    assert (match.ending, len(match.moves), match.returns) == (games.TOO_LONG, 5, (0.0, 0.0))


def test_a_player_that_fails_voids_its_matches_only():
    class Failing:
        def __init__(self):
            self._asked = []

        def ask(self, question):
            self._asked.append(question)

        def answers(self, wait):
            asked, self._asked = self._asked, []
            return [Answer(q.match, q.seat, "", failure="no connection") for q in asked]

        def end(self, match):
            pass

    both = [*requests("kuhn_poker", 3, ("a", "b")), *requests("kuhn_poker", 3, ("a", "a"), "other")]
    matches = games.play_matches({"a": random_player(), "b": Failing()}, both, settings())
    assert [match.ending for match in matches] == [games.VOID] * 3 + [games.BY_RULES] * 3
    assert matches[0].episode(0).status == structs.VOID and matches[0].reason == "no connection"
    assert games.match_metrics(matches)["selfplay/void_share"] == 0.5


def test_a_player_who_never_answers_holds_up_nobody_beyond_the_deadline():
    class Silent:
        def ask(self, question):
            pass

        def answers(self, wait):
            time.sleep(0.01 * wait)
            return []

        def end(self, match):
            pass

    asked = [*requests("kuhn_poker", 2), *requests("kuhn_poker", 3, ("a", "b"), "other")]
    players = {"b": Silent(), "a": random_player()}
    matches = games.play_matches(players, asked, settings(live=3), deadline_secs=0.3)
    assert [match.ending for match in matches] == [games.BY_RULES] * 2 + [games.VOID] * 3
    assert games.match_metrics(matches)["selfplay/deadline_share"] == 0.6
    assert matches[0] == games.play_matches(players, asked[:1], settings())[0]
    episode = matches[-1].episode(1)
    assert episode.status == structs.VOID and episode.episode_return == 0.0 and not episode.turns


def test_random_matches_do_not_depend_on_what_goes_on_beside_them():
    many = [request for name in GAMES for request in requests(name, 10)]
    one_by_one = games.play_matches({"a": random_player()}, many, settings(live=1))
    together = games.play_matches({"a": random_player()}, many[::-1], settings(live=64))
    assert one_by_one == together[::-1]
    assert all(match.ending == games.BY_RULES for match in together)
    log = games.match_metrics(together)
    assert 0 <= log["selfplay/tictactoe/win_rate_seat0"] <= 1 and log["selfplay/kuhn_poker/moves"] >= 10


def test_the_sampler_plays_the_same_whatever_its_slots(make_engine, template):
    """A random policy writes no move, but its responses and log-probs must be a function of the match alone."""
    outcomes = []
    for slots in (2, 5):
        player = policy(make_engine(slots=slots), template)
        outcomes.append(games.play_matches({"a": player}, requests("kuhn_poker", 6), settings(live=slots)))
    for first, second in zip(*outcomes, strict=True):
        assert first.ending == second.ending
        for a, b in zip(first.turns[0], second.turns[0], strict=True):
            np.testing.assert_array_equal(a.response_tokens, b.response_tokens)
            np.testing.assert_allclose(a.behaviour_logp, b.behaviour_logp, atol=1e-5)


def test_commands_are_read_from_the_last_box_or_the_whole_answer():
    assert command_of("first \\boxed{[1]} then \\boxed{ [2] }") == "[2]"
    assert command_of(" [check] ") == "[check]"
    assert command_of("<think>\\boxed{[bet]}</think> [check]") == "[check]"
    assert command_of("<think>\\boxed{[bet]}") == ""


def test_exploring_starts_are_a_function_of_the_seed_and_leave_something_to_play():
    starts = collections.Counter()
    for seed in range(400):
        request = games.MatchRequest("x", "tictactoe", seed, ("a", "a"), exploring_starts=4)
        begun = games.start(request, {})
        assert games.start(dataclasses.replace(request, players=("b", "a"), id="y"), {}).board == begun.board
        assert begun.player is not None
        starts[9 - begun.board.count(".")] += 1
    # Five lengths, 80 of each expected; 4 standard deviations of sqrt(400 x .2 x .8) = 8.
    assert set(starts) == {0, 1, 2, 3, 4} and all(abs(count - 80) < 32 for count in starts.values())
    for name in GAMES:
        request = games.MatchRequest("x", name, 0, ("a", "a"), exploring_starts=200)
        assert games.start(request, {}).player is not None


def test_what_comes_before_is_nobody_s_move():
    requests = [games.MatchRequest(f"x/{i}", "tictactoe", i, ("a", "a"), exploring_starts=4) for i in range(20)]
    matches = games.play_matches({"a": random_player()}, requests, settings())
    lengths = []
    for match in matches:
        board = games.start(match.request, {})
        for seat, action in match.moves:
            assert seat == board.player
            board.step(action)
        assert board.player is None and board.returns() == match.returns
        lengths.append(len(match.moves))
    assert min(lengths) < 5  # fewer than any whole game has
