"""Plays matches of two-player games, many at a time.

Whoever is to move is asked; while one match waits for its answer the others go on. Players only ever see the parsed
actions of each other: what is written beside an action stays with the seat that wrote it.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spade_jax import structs
from spade_jax.envs.games import SEATS, Game, make_game
from spade_jax.rollout.measure import mean_or_nan
from spade_jax.rollout.players import Answer, Player, Question
from spade_jax.rollout.trajectories import conversation_trajectory
from spade_jax.runtime import hosts, seeds

# How a match ended.
BY_RULES, BY_INVALID, TOO_LONG, NO_CONTEXT, VOID = "rules", "invalid", "moves", "context", "void"


@dataclasses.dataclass(frozen=True)
class MatchRequest:
    """A match to be played.

    Attributes:
      id: unique in the run; sampling keys derive from it.
      game: name of the game.
      seed: of the game's own generator.
      players: names of who sits in seat 0 and in seat 1.
      exploring_starts: random moves, at most, that are made before the players take over.
    """

    id: str
    game: str
    seed: int
    players: tuple[str, str]
    exploring_starts: int = 0


@dataclasses.dataclass(frozen=True)
class MatchSettings:
    """Attributes:
    options: constructor options by game, where it has any.
    max_moves: of both seats; a match that needs more ends undecided.
    invalid_returns: what a seat gets for a move that is none, and what the other one gets; the match ends.
    live: matches under way at a time.
    """

    options: Mapping[str, Mapping[str, Any]]
    max_moves: int
    invalid_returns: tuple[float, float]
    live: int


@dataclasses.dataclass(frozen=True)
class Match:
    """A match that was played.

    Attributes:
      request: what was asked for.
      returns: of both seats; 0 for both where it did not end by the rules or by an invalid move.
      ending: BY_RULES, BY_INVALID, TOO_LONG, NO_CONTEXT or VOID.
      offender: the seat whose move was invalid, else None.
      moves: (seat, action) of every legal move of the players.
      turns: by seat, what was said, where its player says anything.
      reason: why it is void, else "".
    """

    request: MatchRequest
    returns: tuple[float, float]
    ending: str
    offender: int | None
    moves: tuple[tuple[int, str], ...]
    turns: tuple[tuple[structs.Turn, ...], tuple[structs.Turn, ...]]
    reason: str = ""

    def episode(self, seat: int) -> structs.Episode:
        """The match as the seat has lived it."""
        status = structs.TRUNCATED
        if self.ending == VOID:
            status = structs.VOID
        elif self.ending in (BY_RULES, BY_INVALID):
            difference = self.returns[seat] - self.returns[1 - seat]
            status = structs.SUCCESS if difference > 0 else structs.FAILURE if difference < 0 else structs.DRAW
        return structs.Episode(
            environment_id=self.request.game,
            role=structs.AGENT,
            arm=structs.PLAIN,
            seed_index=0,
            seed=self.request.seed,
            turns=self.turns[seat],
            episode_return=self.returns[seat],
            status=status,
            reason=self.reason or ("" if self.ending == BY_RULES else self.ending),
            player=seat,
        )


class _Play:
    """A match under way."""

    def __init__(self, index: int, request: MatchRequest, game: Game):
        self.index, self.request, self.game = index, request, game
        self.moves: list[tuple[int, str]] = []
        self.turns: tuple[list[structs.Turn], list[structs.Turn]] = ([], [])


def start(request: MatchRequest, options: Mapping[str, Any]) -> Game:
    """The game at the point where the players take over; how many moves came before is uniform, from none on.

    Exploring starts: a policy that plays against itself soon meets few positions only, and learns nothing of those that
    another opponent leads into (Sutton and Barto, Reinforcement Learning, 2nd edition, section 5.3).
    """
    game = make_game(request.game, request.seed, **options)
    rng = random.Random(seeds.stable_seed("exploring start", request.seed))
    for _ in range(rng.randint(0, request.exploring_starts)):
        ahead = copy.deepcopy(game)
        ahead.step(rng.choice(ahead.legal_actions()))
        if ahead.player is None:
            break  # there would be nothing left to play
        game = ahead
    return game


def play_matches(
    players: Mapping[str, Player],
    requests: Sequence[MatchRequest],
    settings: MatchSettings,
    *,
    deadline_secs: float = 0.0,
) -> list[Match]:
    """Plays all `requests`, of several processes each its share; returns the matches in the same order.

    The same players, requests and settings give the same matches, unless a player answers from outside or the deadline
    passes.

    Args:
      deadline_secs: after which what has not ended, or not begun, is void (PAST_DEADLINE), in every process, see
        `hosts.deadline`; 0 for none.
    """
    name = requests[0].id if requests else ""
    with hosts.deadline(name, deadline_secs) as over:
        return hosts.spread(
            requests, lambda share: _play_all(players, share, settings, over), Match, MatchRequest, structs.Turn
        )


def _play_all(
    players: Mapping[str, Player],
    requests: Sequence[MatchRequest],
    settings: MatchSettings,
    over: Callable[[], bool],
) -> list[Match]:
    waiting = collections.deque(enumerate(requests))
    live: dict[str, _Play] = {}
    matches: list[Match | None] = [None] * len(requests)

    def ask(play: _Play) -> None:
        seat = play.game.player
        name = play.request.players[seat]
        players[name].ask(Question(play.request.id, seat, len(play.moves), play.game))

    def end(play: _Play, ending: str, returns: tuple[float, float], offender: int | None = None, reason: str = ""):
        for name in set(play.request.players):
            players[name].end(play.request.id)
        del live[play.request.id]
        turns = tuple(map(tuple, play.turns))
        matches[play.index] = Match(play.request, returns, ending, offender, tuple(play.moves), turns, reason)

    def answered(play: _Play, answer: Answer) -> None:
        if answer.failure == NO_CONTEXT:
            return end(play, NO_CONTEXT, (0.0, 0.0))
        if answer.failure:
            return end(play, VOID, (0.0, 0.0), reason=answer.failure)
        if answer.turn is not None:
            play.turns[answer.seat].append(answer.turn)
        action = play.game.parse(answer.command)
        if action is None:
            offending, other = settings.invalid_returns
            returns = (offending, other) if answer.seat == 0 else (other, offending)
            return end(play, BY_INVALID, returns, offender=answer.seat)
        play.game.step(action)
        play.moves.append((answer.seat, action))
        if play.game.player is None:
            end(play, BY_RULES, play.game.returns())
        elif len(play.moves) >= settings.max_moves:
            end(play, TOO_LONG, (0.0, 0.0))
        else:
            ask(play)

    while (waiting or live) and not over():
        while waiting and len(live) < settings.live:
            index, request = waiting.popleft()
            live[request.id] = _Play(index, request, start(request, settings.options.get(request.game, {})))
            ask(live[request.id])
        # First without waiting: nobody blocks while another has an answer.
        answers = [answer for player in players.values() for answer in player.answers(wait=False)]
        if not answers:
            to_move = {play.request.players[play.game.player] for play in live.values()}
            answers = next(player for name, player in players.items() if name in to_move).answers(wait=True)
        for answer in answers:
            answered(live[answer.match], answer)
    for play in list(live.values()):
        end(play, VOID, (0.0, 0.0), reason=structs.PAST_DEADLINE)
    for index, request in waiting:
        matches[index] = Match(request, (0.0, 0.0), VOID, None, (), ((), ()), structs.PAST_DEADLINE)
    return matches


def trajectories(
    episode: structs.Episode, group: int, temperature: float, *, by_turn: bool
) -> list[structs.Trajectory]:
    """An episode's training sequences: one for each turn, or one for the whole conversation."""
    if not episode.turns:
        return []
    parts = [(turn,) for turn in episode.turns] if by_turn else [episode.turns]
    return [conversation_trajectory(dataclasses.replace(episode, turns=part), group, temperature) for part in parts]


def void_reasons(matches: Sequence[Match]) -> str:
    """Why matches are void, and how many of how many for each reason; "" where none is."""
    reasons = collections.Counter(match.reason for match in matches if match.ending == VOID)
    return ", ".join(f"{count} of {len(matches)} ({reason})" for reason, count in reasons.most_common())


def match_metrics(matches: Sequence[Match]) -> dict[str, float]:
    """{tag: value} by game, and the share of matches that nobody is to blame for."""
    log = {
        "selfplay/void_share": mean_or_nan([match.ending == VOID for match in matches]),
        "selfplay/deadline_share": mean_or_nan([match.reason == structs.PAST_DEADLINE for match in matches]),
    }
    for name in sorted({match.request.game for match in matches}):
        played = [match for match in matches if match.request.game == name and match.ending != VOID]
        turns = [turn for match in played for seat in range(SEATS) for turn in match.turns[seat]]
        log |= {
            f"selfplay/{name}/win_rate_seat0": mean_or_nan([match.returns[0] > match.returns[1] for match in played]),
            f"selfplay/{name}/draw_rate": mean_or_nan([match.returns[0] == match.returns[1] for match in played]),
            f"selfplay/{name}/invalid_rate": mean_or_nan([match.ending == BY_INVALID for match in played]),
            f"selfplay/{name}/moves": mean_or_nan([len(match.moves) for match in played]),
            f"selfplay/{name}/response_tokens": mean_or_nan([len(turn.response_tokens) for turn in turns]),
        }
    return log
