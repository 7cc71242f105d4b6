"""How well a policy plays two-player games: against opponents, and against the truth where it is known."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from spade_jax.envs.games import SEATS, textarena
from spade_jax.envs.games.kuhn_poker import ACTIONS_AFTER, CARDS, KuhnPoker
from spade_jax.envs.games.tictactoe import EMPTY, TicTacToe
from spade_jax.evals import kuhn, tictactoe
from spade_jax.evals.ratings import elo, wilson_interval
from spade_jax.rollout.games import BY_INVALID, VOID, Match, MatchRequest, MatchSettings, play_matches
from spade_jax.rollout.measure import mean_or_nan
from spade_jax.rollout.players import Answer, Player, PolicyPlayer, Question, ScriptedPlayer, random_player
from spade_jax.runtime.seeds import stable_seed
from spade_jax.structs import BOX
from spade_jax.tokens import chat

POLICY = "policy"  # the player that is measured
OUTCOMES = ("win", "draw", "loss", "invalid")

# Log-probs of (prefix, continuation) pairs of tokens under the policy that is measured.
Score = Callable[[Sequence[tuple[np.ndarray, np.ndarray]]], np.ndarray]


def minimax_player() -> ScriptedPlayer:
    """Perfect play of tic-tac-toe, any of the best moves."""
    return ScriptedPlayer("minimax", lambda game: tictactoe.optimal_actions(game.board))


def opponents_of(game: str, names: Sequence[str]) -> list[str]:
    """Those of the opponents that can play the game."""
    # TextArena does not list its legal actions.
    unable = {"minimax"} if game != TicTacToe.name else set()
    unable |= {"random"} if game.startswith(textarena.PREFIX) else set()
    return [name for name in names if name not in unable]


@dataclasses.dataclass(frozen=True)
class Settings:
    """What is measured.

    Attributes:
      games: names of the games.
      opponents: names of the players that the policy meets.
      matches: of each game against each opponent, half of them in either seat.
      readings: responses per information set from which Kuhn poker's probabilities are read.
      positions: of tic-tac-toe in which a move is asked for.
      match: how a match is played.
    """

    games: tuple[str, ...]
    opponents: tuple[str, ...]
    matches: int
    readings: int
    positions: int
    match: MatchSettings


def scripted_players() -> dict[str, Player]:
    """The opponents that need no weights."""
    return {"random": random_player(), "minimax": minimax_player()}


def measure(
    players: Mapping[str, Player], score: Score, template: chat.ChatTemplate, settings: Settings
) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """(a row for each game, opponent and seat; {tag: value} of what is measured against the truth).

    Args:
      players: the policy, under POLICY, and the opponents.
      score: of the same policy, at the temperature at which it plays.
    """
    matches = play_opponents(players, settings, label="evaluate")
    policy, values = players[POLICY], {}
    if KuhnPoker.name in settings.games:
        options = settings.match.options[KuhnPoker.name]
        read = read_kuhn(policy, score, template, options=options, readings=settings.readings, label="read")
        values |= kuhn_metrics(*read)
    if TicTacToe.name in settings.games:
        values |= optimal_share(policy, positions=settings.positions, label="optimal")
    return table(matches), values


def play_opponents(players: Mapping[str, Player], settings: Settings, *, label: str) -> list[Match]:
    """The matches of every game against every opponent, the policy in either seat by turns.

    Both matches of a pair have the same seed, and seeds are the same for every policy, so that two policies are
    compared on pairs.
    """
    requests = []
    for game in settings.games:
        for opponent in opponents_of(game, settings.opponents):
            for i in range(settings.matches):
                seats = (POLICY, opponent) if i % SEATS == 0 else (opponent, POLICY)
                seed = stable_seed("evaluate", game, opponent, i // SEATS)
                requests.append(MatchRequest(f"{label}/{game}/{opponent}/{i}", game, seed, seats))
    return play_matches(players, requests, settings.match)


def meet(first: Player, second: Player, game: str, settings: Settings, label: str) -> tuple[float, int]:
    """(points of `first`, matches that counted): a win is a point, a draw half of one; both seats, equal seeds."""
    requests = []
    for i in range(settings.matches):
        seats = ("first", "second") if i % SEATS == 0 else ("second", "first")
        seed = stable_seed("meet", game, i // SEATS)
        requests.append(MatchRequest(f"meet/{label}/{game}/{i}", game, seed, seats))
    matches = play_matches({"first": first, "second": second}, requests, settings.match)
    points, played = 0.0, 0
    for match in matches:
        if match.ending != VOID:
            mine = match.request.players.index("first")
            points += 0.5 * (1 + float(np.sign(match.returns[mine] - match.returns[1 - mine])))
            played += 1
    return points, played


def elo_metrics(meetings: Sequence[Sequence[float]], step: int) -> dict[str, float]:
    """{tag: rating} of the policy of `step`, its rating above the first one's; {} before it has met anybody.

    Args:
      meetings: (step, step, points of the first of them, matches).
    """
    names = sorted({int(name) for first, second, *_ in meetings for name in (first, second)})
    if step not in names:
        return {}
    points_KxK, count_KxK = np.zeros((len(names), len(names))), np.zeros((len(names), len(names)))
    for first, second, points, played in meetings:
        i, j = names.index(int(first)), names.index(int(second))
        points_KxK[i, j] += points
        points_KxK[j, i] += played - points
        count_KxK[i, j] += played
        count_KxK[j, i] += played
    rating_K = elo(points_KxK, count_KxK)
    return {"eval/elo": float(rating_K[names.index(step)] - rating_K[0])}


def outcome(match: Match, seat: int) -> str | None:
    """One of OUTCOMES for the seat, None where the match is void. An invalid move of one's own is "invalid"."""
    if match.ending == VOID:
        return None
    if match.ending == BY_INVALID and match.offender == seat:
        return "invalid"
    difference = match.returns[seat] - match.returns[1 - seat]
    return "win" if difference > 0 else "loss" if difference < 0 else "draw"


def table(matches: Sequence[Match]) -> list[dict[str, Any]]:
    """A row for each game, opponent and seat ("both", 0, 1): every outcome's count and 95 % interval of its share.

    Void matches are no part of `matches` and of the shares; their count is beside them.
    """
    rows = []
    pairs = dict.fromkeys((match.request.game, _opponent(match)) for match in matches)
    for game, opponent in pairs:
        mine = [match for match in matches if (match.request.game, _opponent(match)) == (game, opponent)]
        for seat in ("both", 0, 1):
            found = [outcome(m, _seat(m)) for m in mine if seat in ("both", _seat(m))]
            counts = {name: found.count(name) for name in OUTCOMES}
            total = sum(counts.values())
            row = {
                "game": game,
                "opponent": opponent,
                "seat": seat,
                "matches": total,
                "void": found.count(None),
                **counts,
            }
            for name in OUTCOMES:
                row[f"{name}_low"], row[f"{name}_high"] = wilson_interval(counts[name], total)
            rows.append(row)
    return rows


def outcome_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """{tag: share}: eval/<game>/<opponent>/<outcome> of both seats, with <outcome>_low and _high; /seat0/, /seat1/.

    Where there are void matches, their share of all is <opponent>/void.
    """
    log = {}
    for row in rows:
        both = row["seat"] == "both"
        prefix = f"eval/{row['game']}/{row['opponent']}/" + ("" if both else f"seat{row['seat']}/")
        for name in OUTCOMES:
            log[prefix + name] = row[name] / row["matches"] if row["matches"] else float("nan")
            if both:
                log |= {f"{prefix}{name}_{end}": row[f"{name}_{end}"] for end in ("low", "high")}
        if both and row["void"]:
            log[prefix + "void"] = row["void"] / (row["matches"] + row["void"])
    return log


def _seat(match: Match) -> int:
    return match.request.players.index(POLICY)


def _opponent(match: Match) -> str:
    return match.request.players[1 - _seat(match)]


# ---- Kuhn poker -----------------------------------------------------------------------


def read_kuhn(
    player: PolicyPlayer,
    score: Score,
    template: chat.ChatTemplate,
    *,
    options: Mapping[str, Any],
    readings: int,
    label: str,
) -> tuple[kuhn.Policy, float]:
    """The policy's probabilities in the first round's information sets, and the share of responses without a move.

    `readings` responses are drawn for each information set. What precedes the action in each is kept, and the
    actions' probabilities behind it are computed, not counted: their mean is unbiased for a policy that is sampled
    without truncation, and exact where the words before the action do not matter. Responses without a box count for
    nothing; an information set that has no other is read as uniform.

    Args:
      options: of the game, as it is played.
      label: makes the conversation ids unique.
    """
    questions = {}
    for card, moves in kuhn.INFORMATION_SETS:
        for i in range(readings):
            game = _kuhn_at(card, moves, options)
            name = f"{label}/{card}/{''.join(moves)}/{i}"
            questions[name] = (card, moves)
            player.ask(Question(name, game.player, 0, game))
    answers = _all_answers(player, len(questions))
    encode = template.tokenizer.encode
    pairs, asked, invalid = [], [], 0
    for answer in answers:
        card, moves = questions[answer.match]
        written = answer.turn.response if answer.turn else ""
        invalid += _kuhn_at(card, moves, options).parse(answer.command) is None
        before, found, _ = written.rpartition(BOX)
        if found:
            prefix = np.concatenate([answer.turn.prompt_tokens, encode(before + BOX)]).astype(np.int32)
            for action in ACTIONS_AFTER[moves]:
                pairs.append((prefix, np.asarray(encode(action + "}"), np.int32)))
                asked.append((card, moves))
    logp = score(pairs).reshape(-1, 2)
    share = 1 / (1 + np.exp(logp[:, 1] - logp[:, 0])) if len(logp) else np.zeros(0)  # of the first action
    sums: dict[kuhn.InformationSet, list[float]] = {at: [] for at in kuhn.INFORMATION_SETS}
    for at, first in zip(asked[::2], share, strict=True):
        sums[at].append(float(first))
    policy = {}
    for (card, moves), values in sums.items():
        first = sum(values) / len(values) if values else 0.5
        policy[card, moves] = dict(zip(ACTIONS_AFTER[moves], (first, 1 - first), strict=True))
    return policy, invalid / len(questions)


def _kuhn_at(card: str, moves: tuple[str, ...], options: Mapping[str, Any]) -> KuhnPoker:
    """A play whose seat to move holds `card` after `moves` of the first round."""
    game = KuhnPoker(0, **options)
    other = next(name for name in CARDS if name != card)
    game.cards = (card, other) if len(moves) % 2 == 0 else (other, card)
    for move in moves:
        game.step(move)
    return game


def kuhn_metrics(policy: kuhn.Policy, invalid: float) -> dict[str, float]:
    """{tag: value}: exploitability and the value of play against itself, in antes a round."""
    return {
        "eval/kuhn_poker/exploitability": kuhn.exploitability(policy),
        "eval/kuhn_poker/value_seat0": kuhn.value(policy),
        "eval/kuhn_poker/unread": invalid,
    }


# ---- Tic-tac-toe ----------------------------------------------------------------------


def optimal_share(player: PolicyPlayer, *, positions: int, label: str) -> dict[str, float]:
    """{tag: value}: share of positions, drawn once for all policies, in which the policy's move keeps the value."""
    boards = random.Random(0).sample(tictactoe.positions(), positions)
    questions = {}
    for i, board in enumerate(boards):
        game = TicTacToe(0)
        game.board, game.player = board, tictactoe.to_move(board)
        questions[f"{label}/{i}"] = game
        player.ask(Question(f"{label}/{i}", game.player, 9 - board.count(EMPTY), game))
    answers = _all_answers(player, len(questions))
    right = []
    for answer in answers:
        game = questions[answer.match]
        right.append(game.parse(answer.command) in tictactoe.optimal_actions(game.board))
    return {"eval/tictactoe/optimal": mean_or_nan(right)}


def _all_answers(player: PolicyPlayer, count: int) -> list[Answer]:
    answers: list[Answer] = []
    while len(answers) < count:
        found = player.answers(wait=True)
        for answer in found:
            player.end(answer.match)
        answers += found
    return answers
