"""The weaknesses of the published method (method, section 1): `paper` pays for them, `strict` does not.

Each pair of figures comes from the same plays, so that only the switches differ.
"""

from __future__ import annotations

import numpy as np
import pytest
import zoo
from test_payment import waiting

from spade_jax.designer import gate, payment, reward
from spade_jax.designer.reward import PAPER, STRICT

PAPER_GATE = gate.GateConfig(("parse", "contract"))
STRICT_GATE = gate.GateConfig(gate.CHECKS[:-1])
SEEDS, WINDOW = 16, 4
ZOO = {case.name: case for case in zoo.cases()}


def plays(win_rate_S, hinted_S, rng, window=WINDOW):
    """(seeds, plain, hinted, won) of a window in which seed s is won with chance win_rate_S[s] in each play."""
    seeds = np.tile(np.arange(len(win_rate_S)), window)
    plain = (rng.random(len(seeds)) < np.tile(win_rate_S, window)).astype(float)
    hinted = (rng.random(len(seeds)) < np.tile(hinted_S, window)).astype(float)
    return seeds, plain, hinted, plain > 0


def paid(config, win_rate_S, hinted_S, *, draws=400, pairs=SEEDS, solvable=True):
    """Mean designer reward over many windows: regret from the first `pairs` plays, win rate from all."""
    rng = np.random.default_rng(0)
    total = 0.0
    for _ in range(draws):
        seeds, plain, hinted, won = plays(np.asarray(win_rate_S), np.asarray(hinted_S), rng)
        measured = reward.regret(plain[:pairs], hinted[:pairs], config)
        total += reward.designer_reward(
            measured.mean,
            float(won.mean()),
            scale=reward.regret_scale(np.array([measured.se]), config),
            dependence=reward.seed_dependence(seeds, won),
            solvable=solvable,
            config=config,
        )
    return total / draws


def verdict(pool, name, config):
    (report,) = gate.run_gates(pool, [ZOO[name].source], config, hints=[ZOO[name].hint])
    return report.failure


HALF, NEVER = np.full(SEEDS, 0.5), np.zeros(SEEDS)


def test_noise_earns_the_regret_term():
    """True regret 0, won half of the time: paper's floor turns noise into .34 of the term, ours averages out."""
    plateau_off = np.full(SEEDS, 0.5)

    def regret_term(config):
        rng, total = np.random.default_rng(1), 0.0
        for _ in range(4000):
            _, plain, hinted, _ = plays(plateau_off, plateau_off, rng, window=1)
            measured = reward.regret(plain, hinted, config)
            scale = reward.regret_scale(np.array([measured.se]), config)
            # A win rate of 0 leaves the regret term alone.
            value = reward.designer_reward(
                measured.mean, 0.0, scale=scale, dependence=None, solvable=True, config=config
            )
            total += value / reward.REGRET_WEIGHT
        return total / 4000

    assert regret_term(PAPER) == pytest.approx(0.34, abs=0.02)
    assert regret_term(STRICT) == pytest.approx(0.0, abs=0.02)


def test_a_coin_flip_earns_nearly_everything(pool):
    """Of its regret term the noise, .34, and of the plateau nearly all: .4 * .34 + .6 * .97 = .72."""
    assert paid(PAPER, HALF, HALF) > 0.65
    for name in ("coin_flip_by_seed", "coin_flip_by_command", "coin_flip_unverified"):
        assert verdict(pool, name, PAPER_GATE) is None, name
        assert reward.failure_reward(verdict(pool, name, STRICT_GATE), STRICT) < 0, name


def test_half_free_half_impossible_gets_the_full_plateau(pool):
    halves = np.repeat([1.0, 0.0], SEEDS // 2)
    assert paid(PAPER, halves, halves, draws=50) == pytest.approx(reward.PLATEAU_WEIGHT)
    assert paid(STRICT, halves, halves, draws=50) == pytest.approx(0.0)
    assert verdict(pool, "bimodal", PAPER_GATE) is None
    assert verdict(pool, "bimodal", STRICT_GATE) == "trivial"


def test_a_missing_hint_still_earns_the_plateau_and_more_than_it_is_worth():
    """Paper: .6 and the noise. Ours pays a program at the frontier the plateau, and a regret of 0 nothing."""
    assert paid(PAPER, HALF, HALF) > reward.PLATEAU_WEIGHT
    assert paid(STRICT, HALF, HALF) < reward.PLATEAU_WEIGHT


def test_invalid_programs_get_no_negative_gradient():
    refused = [waiting(failure=failure) for failure in sorted(reward.FAILURE_REWARD)]
    assert payment.pay(refused, PAPER) == ([], {})
    ours, _ = payment.pay(refused, STRICT)
    assert len(ours) == len(refused)
    assert all(p.trajectory.episode_return < 0 for p in ours)


def test_solution_is_never_run(pool):
    for name in ("solution_wrong", "solution_empty", "solution_too_long"):
        assert verdict(pool, name, PAPER_GATE) is None, name
        assert verdict(pool, name, STRICT_GATE) == "unsolvable", name


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("global_mutation", "nondeterministic"),
        ("password_in_sight", "leak"),
        ("hint_holds_the_answers", "leak"),
        ("echo_wins", "trivial"),
        ("presolved", "trivial"),
        ("one_instance", "not_varied"),
    ],
)
def test_no_determinism_leak_or_trivial_policy_check(real_pool, name, failure):
    assert verdict(real_pool, name, PAPER_GATE) is None
    assert verdict(real_pool, name, STRICT_GATE) == failure


def test_no_duplicate_check(real_pool):
    sources = [ZOO["dataclass_state"].source] * 2
    assert [r.failure for r in gate.run_gates(real_pool, sources, PAPER_GATE)] == [None, None]
    assert [r.failure for r in gate.run_gates(real_pool, sources, gate.DEFAULT_CONFIG)] == [None, "duplicate"]


def test_partial_rewards_that_sum_to_one_make_a_solve_worth_less(pool):
    """The last reward counts, so a full solve of four equal parts would return a quarter."""
    source = ZOO["partial_scores"].source.replace("score = 1.0 if won else", "score = 0.25 if won else")
    assert source != ZOO["partial_scores"].source
    (paper,) = gate.run_gates(pool, [source], PAPER_GATE)
    (strict,) = gate.run_gates(pool, [source], STRICT_GATE)
    assert (paper.failure, strict.failure) == (None, "unsolvable")


def test_an_unverified_program_earns_as_much_as_a_verified_one():
    hinted = np.ones(SEEDS)
    assert paid(PAPER, HALF, hinted, solvable=False) == paid(PAPER, HALF, hinted) > 0.9
    assert paid(STRICT, HALF, hinted, solvable=False) <= reward.UNVERIFIED_CAP < paid(STRICT, HALF, hinted)


def test_the_rejected_may_hold_all_of_the_advantage():
    advantage, invalid = np.array([0.1, -0.1, -1.0, 0.8]), np.array([False, False, True, True])
    assert np.abs(reward.cap_invalid_share(advantage, invalid, PAPER)[invalid]).sum() == pytest.approx(1.8)
    capped = np.abs(reward.cap_invalid_share(advantage, invalid, STRICT))
    assert capped[invalid].sum() == pytest.approx(capped.sum() / 2)
