"""The rules of the two-player games, against exhaustive and closed-form values and hostile play."""

from __future__ import annotations

import copy
import fractions
import inspect
import itertools
import random
import re
from collections import Counter

import pytest

from spade_jax.envs.games import GAMES, make_game
from spade_jax.envs.games import kuhn_poker as kuhn
from spade_jax.envs.games.base import MAX_ACTION_CHARS
from spade_jax.envs.games.kuhn_poker import BET, CALL, CHECK, FOLD
from spade_jax.envs.games.liars_dice import LiarsDice
from spade_jax.envs.games.negotiation import SimpleNegotiation
from spade_jax.envs.games.pig_dice import PigDice
from spade_jax.envs.games.snake import Snake
from spade_jax.envs.games.tictactoe import TicTacToe
from spade_jax.envs.games.truth_and_deception import TruthAndDeception

HOSTILE = (
    "", " ", "[", "]", "[]", "[[4]]", "4; drop", "\x00", "[" * 10_000, "9" * 5000, "[-1]", "[9]", "٤", "[４]",
    "[check] [bet]", "[Offer: 0 Wood -> 1 Gold]", "[Offer: 99 Wood -> 1 Gold]", "[Offer: 1 Wood -> 1 Wood]",
    "[Offer: 1 Wood -> 99 Gold]", "[Offer: -1 Wood -> 1 Gold]", "[Bid: 99, 1]", "[Bid: 0, 3]", "[Bid: 1, 7]", "None",
    "__class__", "\ud800", "[Accept]\n[Deny]", "{4}", "[Claim: 3]",
)  # fmt: skip


def random_play(name: str, seed: int, **options):
    """One play of uniformly drawn legal actions; yields the game before every move, and at last finished."""
    game, rng = make_game(name, seed, **options), random.Random(seed)
    while game.player is not None:
        yield game
        game.step(rng.choice(game.legal_actions()))
    yield game


def finish(name: str, seed: int, **options):
    *_, game = random_play(name, seed, **options)
    return game


@pytest.mark.parametrize("name", GAMES)
def test_every_play_ends_with_returns_that_sum_to_zero(name):
    outcomes = Counter()
    for seed in range(150):
        game = finish(name, seed)
        first, second = game.returns()
        assert first == -second and -1 <= first <= 1
        assert game.legal_actions() == () and game.parse("[check]") is None
        outcomes[first > 0, first < 0] += 1
    assert outcomes[True, False] and outcomes[False, True]  # either seat can win


@pytest.mark.parametrize("name", GAMES)
def test_returns_are_refused_before_the_end_and_moves_after_it(name):
    with pytest.raises(ValueError, match="not over"):
        make_game(name, 0).returns()
    with pytest.raises(ValueError, match="no legal action"):
        finish(name, 0).step("[check]")


@pytest.mark.parametrize("name", GAMES)
def test_parse_accepts_exactly_the_legal_actions(name):
    for seed in range(12):
        for game in random_play(name, seed):
            if game.player is None:
                continue
            legal = game.legal_actions()
            assert legal and len(set(legal)) == len(legal)
            for action in legal[:: max(1, len(legal) // 20)]:
                assert game.parse(action) == action
                assert game.parse(f"  {action[1:-1].upper()} ") == action  # case, spaces, brackets left out
            for text in HOSTILE:
                assert game.parse(text) in (None, *legal)
            assert game.parse(legal[0] + " " * MAX_ACTION_CHARS) is None
            with pytest.raises(ValueError, match="no legal action"):
                game.step("[no such action]")


def test_hostile_text_is_no_move():
    for name in GAMES:
        game = make_game(name, 0)
        assert [text for text in HOSTILE if game.parse(text)] == [], name


@pytest.mark.parametrize("name", GAMES)
def test_interleaved_plays_are_the_plays_by_themselves(name):
    def trace(games):
        """Plays the games in turn, move by move; their observations and returns."""
        rngs = [random.Random(i) for i in range(len(games))]
        seen = [[] for _ in games]
        while any(game.player is not None for game in games):
            for game, rng, log in zip(games, rngs, seen, strict=True):
                if game.player is not None:
                    log.append(game.observe(game.player))
                    game.step(rng.choice(game.legal_actions()))
                    random.seed(0)  # the global generator belongs to nobody here
        return seen, [game.returns() for game in games]

    together = trace([make_game(name, seed) for seed in range(6)])
    alone = [trace([make_game(name, 0)]), trace([make_game(name, 0)])]
    assert alone[0] == alone[1]
    assert (together[0][0], together[1][0]) == (alone[0][0][0], alone[0][1][0])


@pytest.mark.parametrize("name", GAMES)
def test_the_global_generator_is_never_used(name):
    random.seed(5)
    before = random.getstate()
    finish(name, 3)
    assert random.getstate() == before


@pytest.mark.parametrize("name", GAMES)
def test_texts_do_not_say_which_seat_one_sits_in(name):
    for game in random_play(name, 1):
        for player in (0, 1):
            assert not re.search(r"\b(seat|player) [01]\b", game.observe(player) + game.rules(), re.IGNORECASE)
            assert len(game.observe(player)) < 1500
    assert game.rules().isascii()


def test_options_out_of_range_are_refused():
    for name, option, value in (
        ("kuhn_poker", "rounds", 0), ("kuhn_poker", "payoff", "chips"), ("negotiation", "turns", 1),
        ("snake", "size", 3), ("snake", "apples", 0), ("snake", "rounds", 0), ("pig_dice", "target", 1),
        ("pig_dice", "moves", 1), ("liars_dice", "dice", 0), ("truth_and_deception", "rounds", -1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rf"games\.{name}\.{option}="):
            make_game(name, 0, **{option: value})
    with pytest.raises(ValueError, match="no game"):
        make_game("chess", 0)


def test_every_game_is_about_a_hundred_lines():
    for game in GAMES.values():
        assert len(inspect.getsource(inspect.getmodule(game)).splitlines()) <= 140


# ---- Tic-tac-toe ----------------------------------------------------------------------


def outcome_of_random_play(game: TicTacToe) -> dict[float, fractions.Fraction]:
    """{first seat's return: exact probability} when both seats move uniformly."""
    if game.player is None:
        return {game.returns()[0]: fractions.Fraction(1)}
    total: dict[float, fractions.Fraction] = Counter()
    for action in game.legal_actions():
        after = copy.deepcopy(game)
        after.step(action)
        for value, share in outcomes_of(after).items():
            total[value] += share / len(game.legal_actions())
    return total


_KNOWN: dict[str, dict[float, fractions.Fraction]] = {}


def outcomes_of(game: TicTacToe) -> dict[float, fractions.Fraction]:
    if game.board not in _KNOWN:
        _KNOWN[game.board] = outcome_of_random_play(game)
    return _KNOWN[game.board]


def test_tictactoe_random_play_by_exact_enumeration():
    """First wins 58.49 %, second 28.81 %, draws 12.70 % of uniform play."""
    exact = {value: float(share) for value, share in outcomes_of(TicTacToe(0)).items()}
    assert exact == {1.0: pytest.approx(0.5849, abs=5e-5), -1.0: pytest.approx(0.2881, abs=5e-5),
                     0.0: pytest.approx(0.1270, abs=5e-5)}  # fmt: skip
    assert len(_KNOWN) == 5478  # reachable positions


def test_tictactoe_random_play_by_sampling():
    results = Counter(finish("tictactoe", seed).returns()[0] for seed in range(4000))
    for value, share in ((1.0, 0.5849), (-1.0, 0.2881), (0.0, 0.1270)):
        assert abs(results[value] / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5


def test_tictactoe_by_hand():
    game = TicTacToe(0)
    for action in ("[0]", "[4]", "[1]", "[5]"):
        game.step(action)
    assert game.observe(0) == "You play O.\nO O 2\n3 X X\n6 7 8"
    assert game.legal_actions() == ("[2]", "[3]", "[6]", "[7]", "[8]")
    game.step("[2]")
    assert game.returns() == (1.0, -1.0)


# ---- Kuhn poker -----------------------------------------------------------------------


def expected_chips(policy) -> fractions.Fraction:
    """Exact value of one round for the seat that acts first; policy(card, history) -> {action: probability}."""
    value = fractions.Fraction(0)
    for first, second in itertools.permutations("JQK", 2):

        def walk(history, first=first, second=second):
            won = kuhn.chips_won(history, kuhn.CARDS.index(first) > kuhn.CARDS.index(second))
            if won is not None:
                return fractions.Fraction(won)
            card = (first, second)[len(history) % 2]
            return sum(share * walk((*history, action)) for action, share in policy(card, history).items())

        value += walk(()) / 6
    return value


def test_kuhn_uniform_play_has_its_exact_value():
    half = fractions.Fraction(1, 2)
    assert expected_chips(lambda card, history: dict.fromkeys(kuhn.ACTIONS_AFTER[history], half)) == half / 4


@pytest.mark.parametrize("third", [fractions.Fraction(0), fractions.Fraction(1, 3), fractions.Fraction(1, 9)])
def test_kuhn_equilibrium_is_worth_minus_one_eighteenth(third):
    """The one-parameter family of equilibria (Kuhn 1950): alpha = how often the first seat bets a jack."""
    alpha = third
    bet = {("J", ()): alpha, ("Q", ()): 0, ("K", ()): 3 * alpha,
           ("J", (CHECK,)): fractions.Fraction(1, 3), ("Q", (CHECK,)): 0, ("K", (CHECK,)): 1}  # fmt: skip
    call = {
        ("J", (BET,)): 0,
        ("Q", (BET,)): fractions.Fraction(1, 3),
        ("K", (BET,)): 1,
        ("J", (CHECK, BET)): 0,
        ("Q", (CHECK, BET)): alpha + fractions.Fraction(1, 3),
        ("K", (CHECK, BET)): 1,
    }

    def policy(card, history):
        p = fractions.Fraction(bet.get((card, history), call.get((card, history))))
        first, second = kuhn.ACTIONS_AFTER[history]
        return {first: 1 - p, second: p} if first == CHECK else {first: p, second: 1 - p}

    assert expected_chips(policy) == fractions.Fraction(-1, 18)


def test_kuhn_chips_are_conserved_and_the_leader_wins():
    for seed in range(200):
        for game in random_play("kuhn_poker", seed, rounds=4):
            assert sum(game.chips) == 16 and min(game.chips) >= 0
        margin = game.chips[0] - game.chips[1]
        assert game.returns()[0] == (margin > 0) - (margin < 0)
        assert finish("kuhn_poker", seed, rounds=4, payoff="margin").returns()[0] == margin / 16


def test_kuhn_rounds_alternate_the_start_and_hide_the_other_card():
    for seed in range(20):
        starts = []
        for game in random_play("kuhn_poker", seed, rounds=3):
            if game.player is not None:
                starts.append(game.starter)
                text = game.observe(game.player)
                assert f"Your card: {game.cards[game.player]}." in text
                assert len(re.findall(r"[JQK]\b", text)) == 1
        assert [start for start, _ in itertools.groupby(starts)] == [0, 1, 0]


def test_kuhn_histories_and_payoffs_by_hand():
    for history, higher, lower in (
        ((CHECK, CHECK), 1, -1), ((BET, FOLD), 1, 1), ((BET, CALL), 2, -2),
        ((CHECK, BET, FOLD), -1, -1), ((CHECK, BET, CALL), 2, -2),
    ):  # fmt: skip
        assert (kuhn.chips_won(history, True), kuhn.chips_won(history, False)) == (higher, lower)


def test_kuhn_compat_moves_no_bet_and_the_last_round_decides():
    for seed in range(60):
        last = None
        for game in random_play("kuhn_poker", seed, rounds=3, compat=True):
            change = game.chips[0] - 6 if last is None else game.chips[0] - last
            assert change in (-1, 0, 1)
            before, last = last, game.chips[0]
        assert game.returns()[0] == last - before


# ---- Negotiation ----------------------------------------------------------------------


def test_negotiation_conserves_units_and_the_larger_gain_wins():
    trades = 0
    for seed in range(80):
        first = SimpleNegotiation(seed)
        total = [sum(units) for units in zip(*first.holdings, strict=True)]
        rng = random.Random(seed)
        while first.player is not None:
            legal = first.legal_actions()
            take = "[Accept]" in legal and rng.random() < 0.5
            trades += take
            first.step("[Accept]" if take else rng.choice(legal))
            assert [sum(units) for units in zip(*first.holdings, strict=True)] == total
            assert min(min(held) for held in first.holdings) >= 0
        gains = first.gain(0), first.gain(1)
        assert first.returns()[0] == (gains[0] > gains[1]) - (gains[0] < gains[1])
        assert len(first._moves) == 10
    assert trades > 20


def test_negotiation_by_hand():
    game = SimpleNegotiation(0)
    game.holdings, game.values = [[5, 5], [5, 5]], [[2, 3], [4, 1]]
    game._worth = [25, 25]
    assert game.parse("offer:2 wood->3 GOLD") == "[Offer: 2 Wood -> 3 Gold]"
    assert game.parse("accept") is None
    game.step("[Offer: 2 Wood -> 3 Gold]")
    game.step("[Accept]")
    assert game.holdings == [[3, 8], [7, 2]]
    assert (game.gain(0), game.gain(1)) == (5, 5)  # -4 + 9, 8 - 3
    assert "Wood 2" in game.observe(0) and "Wood 4" not in game.observe(0)
    assert game.parse("accept") is None  # an offer is gone once it was answered


def test_negotiation_offers_are_exactly_what_both_can_deliver():
    game = SimpleNegotiation(0)
    game.holdings = [[1, 2], [0, 1]]
    assert game.legal_actions() == ("[Deny]", "[Offer: 1 Wood -> 1 Gold]")


# ---- Snake ----------------------------------------------------------------------------


def test_snake_is_symmetric_and_shows_no_pending_choice():
    game = Snake(3, size=5)
    game.apples = [(0, 4), (4, 0)]  # each other's mirror images
    before = game.observe(1)
    game.step("[right]")
    assert game.observe(1) == before
    game.step("[left]")
    mirrored = game.observe(1).splitlines()[1:]
    assert [row[::-1] for row in mirrored[::-1]] == game.observe(0).splitlines()[1:]


@pytest.mark.parametrize(
    ("snakes", "moves", "expected"),
    [
        ([[(0, 0)], [(4, 4)]], ("[up]", "[left]"), -1),  # off the grid
        ([[(1, 1)], [(3, 1)]], ("[right]", "[left]"), 0),  # head on
        ([[(1, 1)], [(2, 1)]], ("[right]", "[left]"), 0),  # through each other
        ([[(1, 1)], [(2, 2), (2, 1), (2, 0)]], ("[right]", "[down]"), -1),  # into a body
        ([[(1, 1)], [(2, 2), (2, 1)]], ("[right]", "[down]"), None),  # where a tail was
    ],
)
def test_snake_collisions(snakes, moves, expected):
    game = Snake(0, size=5)
    game.snakes, game.apples = [list(snake) for snake in snakes], [(4, 0)]
    for move in moves:
        game.step(move)
    assert (game.player if expected is None else game.returns()[0]) == (0 if expected is None else expected)


def test_snake_grows_and_the_longer_wins_at_the_end():
    game = Snake(0, size=5, rounds=1)
    game.apples = [(2, 1), (0, 4)]
    game.step("[right]")
    game.step("[up]")
    assert game.snakes[0] == [(2, 1), (1, 1)] and len(game.apples) == 2
    assert game.returns() == (1.0, -1.0)


# ---- Pig ------------------------------------------------------------------------------


def test_pig_dice_the_leader_wins_at_the_target_or_at_the_last_move():
    for seed in range(60):
        game = finish("pig_dice", seed, target=20)
        first, second = game.scores
        assert game.returns()[0] == (first > second) - (first < second)
        assert max(first, second) >= 20 or game._made == 100


def test_pig_dice_one_loses_the_turn():
    game = PigDice(0)
    rolls = iter((6, 5, 1, 4))
    game._rng.randint = lambda low, high: next(rolls)
    game.step("[roll]")
    game.step("[roll]")
    assert (game.turn_total, game.player) == (11, 0)
    game.step("[roll]")
    assert (game.turn_total, game.player, game.scores) == (0, 1, [0, 0])
    game.step("[roll]")
    game.step("[hold]")
    assert (game.scores, game.player) == ([0, 4], 0)


def test_pig_dice_faces_are_uniform():
    rolls = Counter()
    for seed in range(100):
        game = PigDice(seed)
        while game.player is not None:
            game.step("[roll]")
            rolls[game._last] += 1
    assert sorted(rolls) == list("123456")
    total = sum(rolls.values())
    assert sum((count - total / 6) ** 2 / (total / 6) for count in rolls.values()) < 20.5  # chi2, 5 df, p = .001


# ---- Liar's dice ----------------------------------------------------------------------


def test_liars_dice_the_wrong_one_loses_a_die():
    for quantity, caller_right in ((1, False), (2, False), (3, True)):
        game = LiarsDice(0, dice=2)
        game.dice = [[5, 5], [1, 2]]
        game.step(f"[Bid: {quantity}, 5]")
        assert game.player == 1 and "5 5" not in game.observe(1)
        game.step("[Call]")
        assert game._counts == ([1, 2] if caller_right else [2, 1])
        assert game.player == (0 if caller_right else 1)  # who lost begins
        assert [len(dice) for dice in game.dice] == game._counts


def test_liars_dice_bids_rise_and_are_possible():
    game = LiarsDice(0, dice=1)
    assert len(game.legal_actions()) == 12 and "[Call]" not in game.legal_actions()
    game.step("[Bid: 1, 5]")
    assert game.legal_actions() == ("[Call]", "[Bid: 1, 6]", *(f"[Bid: 2, {face}]" for face in range(1, 7)))
    game.step("[Bid: 2, 6]")
    assert game.legal_actions() == ("[Call]",)


# ---- Truth and deception --------------------------------------------------------------


def test_truth_and_deception_pays_the_guess_and_tells_only_the_deceiver():
    for seed in range(40):
        game = TruthAndDeception(seed)
        assert f"Statement {game.true + 1} is true" in game.observe(0)
        assert "is true" not in game.observe(1)
        for _ in range(2):
            game.step("[Claim: 1]")
            game.step("[Ask: 2]")
        game.step("[Claim: 2]")
        assert game.legal_actions() == ("[Guess: 1]", "[Guess: 2]")
        game.step(f"[Guess: {game.true + 1}]")
        assert game.returns() == (-1.0, 1.0)


def test_truth_and_deception_sums_are_true_and_false():
    sums = 0
    for seed in range(200):
        game = TruthAndDeception(seed)
        for index, statement in enumerate(game.statements):
            if match := re.fullmatch(r"(\d+) times (\d+) is (\d+)", statement):
                sums += 1
                assert (int(match[1]) * int(match[2]) == int(match[3])) == (index == game.true)
    assert 120 < sums < 280
