"""The whole loop on several processes: the numbers of one, the same memory in all, one of them killed, one stalled.

Small enough for every build; `trainer_runs.py` has the commands for more processes and every moment of death.
"""

from __future__ import annotations

import json
import math

import pytest
import trainer_runs

TIMEOUT = 900.0


def run(out, processes, algorithm):
    return trainer_runs.run(out, processes, 1, algorithm=algorithm, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def two(request, tmp_path_factory):
    """A run of two processes that nobody disturbed."""
    return request.param, run(tmp_path_factory.mktemp(request.param) / "2x1", 2, request.param)


@pytest.mark.slow
@pytest.mark.parametrize("two", ["spade", "spiral"], indirect=True)
def test_two_processes_have_the_losses_of_one_and_hold_the_same(two, tmp_path):
    algorithm, both = two
    (one,) = run(tmp_path / "1x1", 1, algorithm)
    assert len(one) == len(both[0]) == trainer_runs.STEPS and len(both) == 2
    assert trainer_runs.same_on_all_hosts(both)
    tags = ("learner/loss", "learner/grad_norm", "learner/entropy")
    assert trainer_runs.largest_difference(one, both[0], tags) <= trainer_runs.TOLERANCE
    for alone, shared in zip(one, both[0], strict=True):
        assert any(alone["scalars"][tag] for tag in tags)
        assert shared["memory"] == alone["memory"]
        assert shared["baselines"] == pytest.approx(alone["baselines"], abs=trainer_runs.TOLERANCE)
        assert alone["scalars"].keys() == shared["scalars"].keys()


@pytest.mark.slow
@pytest.mark.parametrize("two", ["spiral"], indirect=True)
def test_one_is_killed_while_sampling_and_all_start_again(two, tmp_path):
    algorithm, expected = two
    children = trainer_runs.start(tmp_path, 2, 1, algorithm=algorithm, kill="1:play:1")
    survivor, victim = trainer_runs.finish(children, TIMEOUT)
    assert victim == -9 and survivor != 0
    said = (tmp_path / "log.0").read_text(encoding="utf-8")
    # In a collective it hears of it at once, and otherwise from JAX's heartbeats.
    assert "another process of this run has ended" in said or "another task died" in said, said[-2000:]
    found = run(tmp_path, 2, algorithm)
    assert json.dumps(found[0][-1]) == json.dumps(expected[0][-1])
    assert trainer_runs.same_on_all_hosts([steps[-1:] for steps in found])


@pytest.mark.slow
def test_one_whose_sandbox_does_not_answer_holds_up_the_others_until_the_deadline(tmp_path):
    extra = ("--config.rollout.deadline_secs=40",)
    codes = trainer_runs.finish(
        trainer_runs.start(tmp_path, 2, 1, algorithm="spade", kill="1:stall:1", extra=extra), TIMEOUT
    )
    assert codes == [0, 0], (tmp_path / "log.0").read_text(encoding="utf-8")[-2000:]
    found = trainer_runs.held(tmp_path)
    assert trainer_runs.same_on_all_hosts(found)
    stalled = found[0][1]["scalars"]
    # Half of the episodes were the stalled one's, more on a slow machine; the step goes on with the rest.
    assert 0.5 <= stalled["agent/deadline_share"] < 1
    assert stalled["learner/tokens"] > 0 and math.isfinite(stalled["learner/loss"])
