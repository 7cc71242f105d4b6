import numpy as np
import pytest

from spade_jax.designer import payment, reward
from spade_jax.designer.delayed import Waiting
from spade_jax.structs import Trajectory

TRAJECTORY = Trajectory(
    tokens=np.zeros(2, np.int32),
    loss_mask=np.ones(2, bool),
    behaviour_logp=np.zeros(2, np.float32),
    role=1,
    group=0,
    episode_return=0.0,
)


def waiting(failure=None, solvable=True, plain=(), hinted=(), won=()):
    return Waiting(
        environment_id="e",
        skill="optimization",
        written_step=0,
        failure=failure,
        solvable=solvable,
        trajectory=TRAJECTORY,
        seed=list(range(len(plain))),
        plain=list(plain),
        hinted=list(hinted),
        won=list(won),
    )


HALF = dict(plain=[1.0, 0.0] * 4, hinted=[1.0] * 8, won=[True, False] * 4)


def test_strict_pays_a_sound_learnable_program_by_hand():
    """d = (0, 1) x 4: mean .5, SE = sqrt(8 * .25 / 7 / 8) = .189; scale 2 * .189; the regret term saturates at 1."""
    paid, log = payment.pay([waiting(**HALF)], reward.STRICT)
    assert paid[0].trajectory.episode_return == pytest.approx(0.4 + 0.6)
    assert not paid[0].rejected
    assert log == {"designer/reward": pytest.approx(1.0)}


def test_an_unverified_program_earns_half_at_most():
    paid, _ = payment.pay([waiting(solvable=False, **HALF)], reward.STRICT)
    assert paid[0].trajectory.episode_return == pytest.approx(0.5)


def test_rejected_programs_are_paid_by_class_in_strict_and_left_out_in_paper():
    rejected = waiting(failure="crash")
    paid, _ = payment.pay([rejected], reward.STRICT)
    assert (paid[0].trajectory.episode_return, paid[0].rejected) == (-0.6, True)
    assert payment.pay([rejected], reward.PAPER) == ([], {})


def test_infrastructure_faults_and_too_few_pairs_give_no_gradient():
    few = waiting(plain=[1.0] * 7, hinted=[1.0] * 7, won=[True] * 7)
    assert payment.pay([waiting(failure="infrastructure"), few], reward.STRICT) == ([], {})


def test_nothing_released_logs_nothing():
    assert payment.pay([], reward.STRICT) == ([], {})
