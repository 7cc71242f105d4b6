from __future__ import annotations

import json

import numpy as np
import pytest

from spade_jax.designer.delayed import DelayedQueue, Waiting
from spade_jax.structs import Trajectory


def waiting(name: str, step: int, failure: str | None = None) -> Waiting:
    trajectory = Trajectory(
        np.arange(3, dtype=np.int32), np.array([False, True, True]), np.array([0, -0.1, -1 / 3], np.float32), 1, 0, 0.0
    )
    return Waiting(name, "optimization", step, failure, failure is None, trajectory)


def test_a_batch_is_released_when_its_window_ends():
    queue = DelayedQueue(window=4)
    queue.push(waiting("a", 0))
    queue.push(waiting("b", 0, "crash"))
    queue.push(waiting("c", 1))
    assert [queue.release(step) for step in range(3)] == [[], [], []]
    assert [item.environment_id for item in queue.release(3)] == ["a", "b"]
    assert len(queue) == 1
    assert [item.environment_id for item in queue.release(9)] == ["c"]


def test_plays_gather_over_the_window_and_void_ones_are_kept_apart():
    queue = DelayedQueue(window=2)
    queue.push(waiting("a", 0))
    queue.observe("a", [0, 1], [1.0, None], [1.0, 1.0], [True, None])
    queue.observe("a", [0, 1], [0.0, 0.0], [None, 1.0], [False, False])
    queue.observe("other", [0], [1.0], [1.0], [True])
    item = queue.release(1)[0]
    plain, hinted = item.returns()
    np.testing.assert_array_equal(plain, [1.0, np.nan, 0.0, 0.0])
    np.testing.assert_array_equal(hinted, [1.0, 1.0, np.nan, 1.0])
    seeds, won = item.outcomes()
    np.testing.assert_array_equal(seeds, [0, 0, 1])
    np.testing.assert_array_equal(won, [True, False, False])
    with pytest.raises(ValueError, match="unpaired plays"):
        queue.observe("a", [0], [1.0], [], [True])


def test_state_survives_json_exactly():
    queue = DelayedQueue(window=3)
    queue.push(waiting("a", 5))
    queue.observe("a", [2], [None], [0.25], [None])
    restored = DelayedQueue(window=3)
    restored.load(json.loads(json.dumps(queue.state(), allow_nan=False)))
    assert restored.state() == queue.state()
    item = restored.release(7)[0]
    assert item.trajectory.behaviour_logp.dtype == np.float32
    np.testing.assert_array_equal(item.trajectory.behaviour_logp, np.array([0, -0.1, -1 / 3], np.float32))


def test_impossible_window():
    with pytest.raises(ValueError, match="window of 0"):
        DelayedQueue(0)
