"""Packing: fixed shapes, nothing lost silently."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from spade_jax.learner.batch import BucketConfig, assign_buckets, pack
from spade_jax.structs import Trajectory


def trajectory(length, *, mark=0, weight=1.0, temperature=1.0, spoken=True):
    mask = np.zeros(length, bool)
    mask[-2:] = spoken
    return Trajectory(
        tokens=np.arange(length, dtype=np.int32) + 1,
        loss_mask=mask,
        behaviour_logp=np.where(mask, -1.0, 0.0).astype(np.float32),
        role=1,
        group=0,
        episode_return=0.0,
        temperature=temperature,
        version=mark,
        weight=weight,
    )


CONFIG = BucketConfig(lengths=(8, 16, 32), tokens_per_micro_batch=64)


def test_shapes_depend_on_the_bucket_only():
    for n in (1, 5, 9):
        stacks = pack([trajectory(7)] * n, [0.5] * n, CONFIG)[0][0]
        assert [s.batch.tokens.shape[1:] for s in stacks] == [(8, 8)]
        assert stacks[0].count == -(-n // 8)
    assert CONFIG.rows(32) == 2


def test_micro_batches_are_stacked_by_four():
    (stacks,), report = pack([trajectory(30)] * 11, [1.0] * 11, CONFIG)
    assert [s.batch.tokens.shape for s in stacks] == [(4, 2, 32)] * 2
    assert [int(s.count) for s in stacks] == [4, 2]
    assert (report.packed, report.tokens, report.capacity) == (11, 330, 6 * 64)
    assert report.padding_share == 1 - 330 / 384
    # Dealt round robin: the one filling row is in the last micro-batch that counts.
    weights = np.concatenate([s.batch.weight for s in stacks])
    np.testing.assert_array_equal(weights, [[1, 1]] * 5 + [[1, 0]] + [[0, 0]] * 2)


def test_every_trajectory_arrives_whole():
    lengths = [3, 8, 9, 16, 17, 31, 32, 5, 4, 3, 12]
    given = [trajectory(t, mark=i) for i, t in enumerate(lengths)]
    (stacks,), report = pack(given, list(range(len(given))), CONFIG)
    found = {}
    for stack in stacks:
        b = stack.batch
        for m, r in zip(*np.nonzero(b.weight), strict=True):
            t = given[b.version[m, r]]
            n = len(t.tokens)
            found[int(b.version[m, r])] = n
            np.testing.assert_array_equal(b.tokens[m, r], np.pad(t.tokens, (0, b.tokens.shape[2] - n)))
            np.testing.assert_array_equal(np.nonzero(b.loss_mask[m, r])[0], [n - 2, n - 1])
            np.testing.assert_array_equal(b.behaviour_logp[m, r][:n], t.behaviour_logp)
            assert b.advantage[m, r] == b.version[m, r]
            assert b.role[m, r] == 1
            np.testing.assert_array_equal(b.positions[m, r], np.arange(b.tokens.shape[2]))
    assert found == dict(enumerate(lengths))
    assert report.packed == len(lengths)


def test_what_is_left_out_is_counted():
    given = [trajectory(33), trajectory(4, weight=0.0), trajectory(5, spoken=False), trajectory(6)]
    _, report = pack(given, [1.0] * 4, CONFIG)
    assert (report.packed, report.too_long, report.zero_weight, report.empty) == (1, 1, 1, 1)


def test_short_rows_ride_with_long_ones_where_that_saves_a_micro_batch():
    assert assign_buckets([32] + [8] * 9, CONFIG) == [list(range(2, 10)), [], [0, 1]]
    assert assign_buckets([8] * 3 + [16] * 5, CONFIG) == [[], list(range(8)), []]
    assert assign_buckets([8] * 2, CONFIG) == [[0, 1], [], []]  # nobody to ride with
    assert [len(b) for b in assign_buckets([8] * 16 + [32, 33], CONFIG)] == [15, 0, 2]


def test_no_other_micro_batches_have_fewer_positions():
    config = BucketConfig(lengths=(5, 8, 13), tokens_per_micro_batch=26)  # 5, 3 and 2 rows: 25, 24 and 26 positions
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = sorted(rng.integers(1, 14, rng.integers(1, 12)).tolist(), reverse=True)

        def holds(chosen, lengths=lengths):
            rows = sorted((length for length in chosen for _ in range(config.rows(length))), reverse=True)
            return len(rows) >= len(lengths) and all(a >= b for a, b in zip(rows, lengths, strict=False))

        sets = (c for n in range(1, 7) for c in itertools.combinations_with_replacement(config.lengths, n))
        least = min(sum(config.rows(n) * n for n in chosen) for chosen in sets if holds(chosen))
        buckets = assign_buckets(lengths, config)
        assert sorted(i for bucket in buckets for i in bucket) == list(range(len(lengths)))
        capacity = 0
        for bucket, length in zip(buckets, config.lengths, strict=True):
            assert all(lengths[i] <= length for i in bucket)
            capacity += -(-len(bucket) // config.rows(length)) * config.rows(length) * length
        assert capacity == least


def test_minibatches_share_the_trajectories_out():
    minibatches, report = pack([trajectory(7, mark=i) for i in range(6)], [0.0] * 6, CONFIG, minibatches=2)
    marks = [stacks[0].batch.version[stacks[0].batch.weight > 0].tolist() for stacks in minibatches]
    assert marks == [[0, 2, 4], [1, 3, 5]]
    assert report.packed == 6


def test_rows_are_a_multiple_of_the_data_parallel_devices():
    config = BucketConfig(lengths=(8,), tokens_per_micro_batch=100, row_multiple=8)
    assert config.rows(8) == 8  # 12 rows rounded down
    (stacks,), _ = pack([trajectory(8)] * 9, [0.0] * 9, config)
    assert stacks[0].batch.tokens.shape == (4, 8, 8)
    assert stacks[0].count == 2


def test_nothing_to_pack():
    minibatches, report = pack([], [], CONFIG)
    assert minibatches == [[]] and np.isnan(report.padding_share)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (trajectory(5, temperature=0.0), "trajectory 0 was drawn at temperature 0.0"),
        (Trajectory(np.zeros(3, np.int32), np.ones(2, bool), np.zeros(3), 0, 0, 0.0), "3 tokens, 2 mask entries"),
        (
            Trajectory(np.zeros(2, np.int32), np.ones(2, bool), np.array([0, np.nan]), 0, 0, 0.0),
            "behaviour log-prob that is not finite",
        ),
    ],
)
def test_bad_trajectories(bad, message):
    with pytest.raises(ValueError, match=message):
        pack([bad], [0.0], CONFIG)


def test_bad_config():
    with pytest.raises(ValueError, match="must ascend"):
        BucketConfig(lengths=(16, 8), tokens_per_micro_batch=64)
    with pytest.raises(ValueError, match="1 advantages for 2 trajectories"):
        pack([trajectory(4)] * 2, [1.0], CONFIG)
