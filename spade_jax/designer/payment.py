"""Pays the designer samples whose window has ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from spade_jax.designer import reward
from spade_jax.designer.delayed import Waiting
from spade_jax.structs import Trajectory


@dataclasses.dataclass(frozen=True)
class Payment:
    """One paid designer sample.

    Attributes:
      trajectory: the sample, with its reward as the return.
      rejected: whether the gate had rejected the program.
    """

    trajectory: Trajectory
    rejected: bool


def pay(matured: Sequence[Waiting], config: reward.RewardConfig) -> tuple[list[Payment], dict[str, float]]:
    """Rewards of the samples released together.

    Samples without a reward (an infrastructure fault, too few valid pairs, or a rejected
    program where those are not paid) are left out: they give no gradient.

    Returns:
      (payments in order, {tag: value}; empty when nothing was released).
    """
    regrets = {id(item): reward.regret(*item.returns(), config) for item in matured if item.failure is None}
    scale = reward.regret_scale(np.array([r.se for r in regrets.values() if r.enough]), config)
    payments = []
    for item in matured:
        if item.failure is not None:
            value = reward.failure_reward(item.failure, config)
        elif not regrets[id(item)].enough:
            value = None
        else:
            seed_N, won_N = item.outcomes()
            value = reward.designer_reward(
                regrets[id(item)].mean,
                float(np.mean(won_N)),
                scale=scale,
                dependence=reward.seed_dependence(seed_N, won_N),
                solvable=item.solvable,
                config=config,
            )
        if value is not None:
            trajectory = dataclasses.replace(item.trajectory, episode_return=float(value))
            payments.append(Payment(trajectory, item.failure is not None))
    if not payments:
        return [], {}
    return payments, {"designer/reward": float(np.mean([p.trajectory.episode_return for p in payments]))}
