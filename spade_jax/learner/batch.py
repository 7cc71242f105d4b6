"""Trajectories to rectangular micro-batches of a few fixed shapes; NumPy only.

Axes: M micro-batches, B rows, T tokens.

A bucket is a sequence length T with its own fixed row count B, chosen so that B * T is about the same in all buckets:
each bucket compiles once, and a micro-batch costs about the same whichever bucket it comes from. Rows that are missing
are filled with weight 0.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spade_jax.structs import Batch, Trajectory

_STACKED = 4  # micro-batches of one stack; the same for every bucket and count, so that a bucket has one shape


@dataclasses.dataclass(frozen=True)
class BucketConfig:
    """Attributes:
    lengths: bucket lengths in tokens, ascending.
    tokens_per_micro_batch: B * T aimed at, over all devices together.
    row_multiple: B is a multiple of it: data-parallel devices (`partitioning.batch_shards`).
    """

    lengths: tuple[int, ...]
    tokens_per_micro_batch: int
    row_multiple: int = 1

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 2:
            raise ValueError(f"learner.buckets={self.lengths} must ascend, from 2 or more")

    def rows(self, length: int) -> int:
        """B: rows of one micro-batch of this bucket."""
        return max(self.tokens_per_micro_batch // length // self.row_multiple, 1) * self.row_multiple


class Stack(NamedTuple):
    """Micro-batches of one bucket; a pytree.

    Attributes:
      batch: Batch of [M, B, T] and [M, B] arrays, M = 4.
      count: int32[], how many of the M are to be computed; what lies beyond is never visited.
    """

    batch: Batch
    count: np.ndarray


@dataclasses.dataclass(frozen=True)
class PackReport:
    """What packing did; everything that is not trained on is counted here.

    Attributes:
      packed: trajectories placed.
      too_long: trajectories longer than the longest bucket, left out.
      zero_weight: trajectories of weight 0 (dropped by the estimator), left out.
      empty: trajectories without a token in the loss, left out.
      tokens: tokens of the packed trajectories, prompts included.
      capacity: token positions of the micro-batches that hold them.
    """

    packed: int
    too_long: int
    zero_weight: int
    empty: int
    tokens: int
    capacity: int

    @property
    def padding_share(self) -> float:
        """Share of the positions computed that hold no token, filling rows included; NaN where there are none."""
        return 1 - self.tokens / self.capacity if self.capacity else float("nan")


def assign_buckets(lengths: Sequence[int], config: BucketConfig) -> list[list[int]]:
    """Row indices for each bucket, in order of arrival; too long ones are in none.

    The rows are in the micro-batches that together have the fewest positions. Longest rows first, the next
    micro-batch has to be as long as the longest row left and takes as many as it has room for; so the least cost
    of what is left after k rows follows from that after more of them.
    """
    order = sorted((i for i, n in enumerate(lengths) if n <= config.lengths[-1]), key=lambda i: -lengths[i])
    shapes = [(length, config.rows(length)) for length in config.lengths]
    cost, choice = [0] * (len(order) + 1), [0] * len(order)
    for k in reversed(range(len(order))):
        cost[k], choice[k] = min(
            (rows * length + cost[min(k + rows, len(order))], bucket)
            for bucket, (length, rows) in enumerate(shapes)
            if length >= lengths[order[k]]
        )
    found: list[list[int]] = [[] for _ in shapes]
    k = 0
    while k < len(order):
        rows = shapes[choice[k]][1]
        found[choice[k]] += order[k : k + rows]
        k += rows
    return [sorted(rows) for rows in found]


def _stacks(
    trajectories: list[Trajectory], advantages: list[float], length: int, rows: int, count: int
) -> list[Stack]:
    """`count` micro-batches of one bucket."""
    shape = (-(-count // _STACKED) * _STACKED, rows, length)
    batch = Batch(
        tokens=np.zeros(shape, np.int32),
        positions=np.broadcast_to(np.arange(length, dtype=np.int32), shape),
        loss_mask=np.zeros(shape, bool),
        behaviour_logp=np.zeros(shape, np.float32),
        temperature=np.ones(shape[:2], np.float32),
        advantage=np.zeros(shape[:2], np.float32),
        role=np.zeros(shape[:2], np.int32),
        version=np.zeros(shape[:2], np.int32),
        weight=np.zeros(shape[:2], np.float32),
    )
    for i, (trajectory, advantage) in enumerate(zip(trajectories, advantages, strict=True)):
        # Round robin over the micro-batches, so that padding is spread evenly.
        at, T = (i % count, i // count), len(trajectory.tokens)
        batch.tokens[at][:T] = trajectory.tokens
        batch.loss_mask[at][:T] = trajectory.loss_mask
        batch.behaviour_logp[at][:T] = trajectory.behaviour_logp
        batch.temperature[at] = trajectory.temperature
        batch.advantage[at] = advantage
        batch.role[at] = trajectory.role
        batch.version[at] = trajectory.version
        batch.weight[at] = trajectory.weight
    return [
        Stack(Batch(*(x[m : m + _STACKED] for x in batch)), np.asarray(min(count - m, _STACKED), np.int32))
        for m in range(0, count, _STACKED)
    ]


def _check(index: int, trajectory: Trajectory) -> None:
    if not len(trajectory.tokens) == len(trajectory.loss_mask) == len(trajectory.behaviour_logp):
        raise ValueError(
            f"trajectory {index}: {len(trajectory.tokens)} tokens, {len(trajectory.loss_mask)} mask entries and "
            f"{len(trajectory.behaviour_logp)} log-probs; they must be equally many"
        )
    if trajectory.temperature <= 0:
        raise ValueError(
            f"trajectory {index} was drawn at temperature {trajectory.temperature}: greedy tokens have no "
            "probability ratio; sample what is trained on"
        )
    if not np.isfinite(trajectory.behaviour_logp[trajectory.loss_mask]).all():
        raise ValueError(f"trajectory {index} has a behaviour log-prob that is not finite; the sampler is at fault")


class Assignment(NamedTuple):
    """Which trajectory goes where.

    Attributes:
      rows: per minibatch and bucket, indices into the trajectories.
      too_long, zero_weight, empty: how many are left out, by reason.
    """

    rows: list[list[list[int]]]
    too_long: int
    zero_weight: int
    empty: int


def assign(trajectories: Sequence[Trajectory], config: BucketConfig, *, minibatches: int = 1) -> Assignment:
    """Deals the trajectories that can be trained on to minibatches (one after another), then to buckets.

    Raises:
      ValueError: arrays of unequal length, temperature 0, or a log-prob that is not finite.
    """
    for index, trajectory in enumerate(trajectories):
        _check(index, trajectory)
    heavy = [i for i, t in enumerate(trajectories) if t.weight > 0]
    spoken = [i for i in heavy if np.any(trajectories[i].loss_mask[1:])]
    fitting = [i for i in spoken if len(trajectories[i].tokens) <= config.lengths[-1]]
    parts = [fitting[k::minibatches] for k in range(minibatches)]
    rows = []
    for part in parts:
        buckets = assign_buckets([len(trajectories[i].tokens) for i in part], config)
        rows.append([[part[j] for j in bucket] for bucket in buckets])
    return Assignment(rows, len(spoken) - len(fitting), len(trajectories) - len(heavy), len(heavy) - len(spoken))


def pack(
    trajectories: Sequence[Trajectory],
    advantages: Sequence[float],
    config: BucketConfig,
    *,
    minibatches: int = 1,
) -> tuple[list[list[Stack]], PackReport]:
    """Trajectories to stacks of micro-batches: one list of stacks (shortest bucket first) per minibatch.

    Args:
      advantages: one float for each trajectory.
      minibatches: optimiser steps that share the trajectories out among them.

    Raises:
      ValueError: see `assign`; or as many advantages as trajectories were not given.
    """
    if len(advantages) != len(trajectories):
        raise ValueError(f"{len(advantages)} advantages for {len(trajectories)} trajectories; give one for each")
    plan = assign(trajectories, config, minibatches=minibatches)
    out, packed, capacity = [], [], 0
    for buckets in plan.rows:
        stacks = []
        for indices, length in zip(buckets, config.lengths, strict=True):
            if indices:
                rows = config.rows(length)
                count = -(-len(indices) // rows)
                chosen = [trajectories[i] for i in indices]
                stacks += _stacks(chosen, [advantages[i] for i in indices], length, rows, count)
                capacity += count * rows * length
                packed += chosen
        out.append(stacks)
    report = PackReport(
        packed=len(packed),
        too_long=plan.too_long,
        zero_weight=plan.zero_weight,
        empty=plan.empty,
        tokens=sum(len(t.tokens) for t in packed),
        capacity=capacity,
    )
    return out, report
