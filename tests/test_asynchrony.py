"""Rollouts that overlap the update, in whole runs: how old what they draw is, stamps across a swap, kill and stop."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

from spade_jax.runtime import metrics
from spade_jax.runtime.checkpoint import Checkpointer

ROOT = pathlib.Path(__file__).parents[1]
SPIRAL = (
    f"--config={ROOT}/configs/spiral_tiny.py:runlocal", "--config.selfplay.opponent=self", "--config.run.steps=6",
)  # fmt: skip
SPADE = (
    f"--config={ROOT}/configs/spade_tiny.py:runlocal", "--config.run.steps=4", "--config.rollout.seeds=3",
    "--config.rollout.min_pairs=2",
)  # fmt: skip
QUIET = ("--config.evaluation.every_steps=0", "--config.checkpoint.save_steps=1")


def command(out, workdir, when, *flags):
    return [
        sys.executable, f"{ROOT}/tests/lagging_worker.py", str(out), when, f"--workdir={workdir}", *flags, *QUIET,
        "--config.rollout.max_staleness=1",
    ]  # fmt: skip


def environ(devices):
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}


def run(workdir, when, *flags, devices=1):
    arguments = command(f"{workdir}.steps", workdir, when, *flags)
    return subprocess.run(
        arguments, env=environ(devices), capture_output=True, text=True, timeout=600, check=False
    )


def run_together(workdir, whens, *flags, devices=1):
    """As many processes as `whens`, of which process i tells in `workdir`.steps.i; exit codes, and what they said."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        (_, port) = free.getsockname()
    children = []
    for i, when in enumerate(whens):
        join = (f"--coordinator=127.0.0.1:{port}", f"--num_processes={len(whens)}", f"--process_id={i}")
        with open(f"{workdir}.log.{i}", "w", encoding="utf-8") as log:
            arguments = command(f"{workdir}.steps.{i}", workdir, when, *flags, *join)
            children.append(subprocess.Popen(arguments, env=environ(devices), stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [child.wait(600) for child in children]
    finally:
        for child in children:
            child.kill()
    return codes, [pathlib.Path(f"{workdir}.log.{i}").read_text(encoding="utf-8") for i in range(len(whens))]


def told(out):
    return [json.loads(line) for line in pathlib.Path(out).read_text(encoding="utf-8").splitlines()]


def newest(workdir):
    with Checkpointer(f"{workdir}/checkpoints", keep=1, read_only=True) as checkpointer:
        return checkpointer.latest_step()


@pytest.mark.slow
def test_no_token_is_older_than_allowed_and_a_killed_run_goes_on(tmp_path):
    """One update may lag: killed while two steps are unwritten, resumed, and asked to stop with an update under way."""
    workdir = tmp_path / "run"
    killed = run(workdir, "kill:2", *SPIRAL)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    saved = newest(workdir)
    assert saved in (1, 2)  # the second one was begun in the rollout before the kill, and may not be complete
    first = told(f"{workdir}.steps")
    assert [step["step"] for step in first] == [0, 1, 2]
    stopped = run(workdir, "term:4", *SPIRAL)
    assert stopped.returncode == 0, stopped.stderr
    assert "stopped after step 5 with a checkpoint" in stopped.stdout
    assert newest(workdir) == 5
    second = told(f"{workdir}.steps")[len(first) :]
    assert [step["step"] for step in second] == list(range(saved, 5))
    for steps in (first, second):
        # The first rollout of a process has nothing before it that could lag.
        assert {v for turn in steps[0]["turns"] for v in turn} == {steps[0]["step"]}
        for step in steps[1:]:
            now = step["step"]
            assert {v for turn in step["turns"] for v in turn} == {now - 1, now}
            assert all(np.all(np.diff(turn) >= 0) for turn in step["turns"])
            assert any(len(set(turn)) == 2 for turn in step["turns"])  # new weights came in the middle of a response
            assert min(step["trained"]["agent"]) == now - 1
    scalars = metrics.read_scalars(workdir)
    for tag in ("learner/loss", "perf/train_tokens_per_s", "selfplay/void_share", "perf/seconds/update"):
        assert scalars[tag][0].tolist() == list(range(5)), tag
    oldest = scalars["learner/staleness_max"][1].tolist()
    assert oldest == [0 if step in (0, saved) else 1 for step in range(5)]
    off_policy = scalars["learner/staleness"][1] > 0
    assert scalars["learner/logp_gap_max"][1][off_policy].min() > 1e-4
    assert 0 < abs(scalars["learner/tis_weight"][1][off_policy] - 1).max() < 0.5


@pytest.mark.slow
def test_designer_samples_wait_for_their_window_and_are_no_older_than_that(tmp_path):
    workdir = tmp_path / "run"
    finished = run(workdir, "-", *SPADE)
    assert finished.returncode == 0, finished.stderr
    assert newest(workdir) == 4
    steps = told(f"{workdir}.steps")
    assert [step["step"] for step in steps] == list(range(4))
    assert any(step["trained"]["designer"] for step in steps)
    for step in steps:
        assert all(step["step"] - 1 <= version <= step["step"] for version in step["trained"]["agent"])
        assert all(step["step"] - 2 <= version < step["step"] for version in step["trained"]["designer"])
    scalars = metrics.read_scalars(workdir)
    assert scalars["learner/loss"][0].tolist() == scalars["agent/win_rate"][0].tolist() == list(range(4))


@pytest.mark.slow
def test_several_processes_overlap_too_and_stop_with_an_update_under_way(tmp_path):
    """Two of two devices: what they exchange comes before or after an update in both, or they would wait for ever."""
    workdir = tmp_path / "run"
    codes, logs = run_together(workdir, ("-", "term:2"), *SPIRAL, devices=2)  # one of them is asked to stop
    assert codes == [0, 0], logs[0][-2000:] + logs[1][-2000:]
    assert "stopped after step 3 with a checkpoint" in logs[0] and newest(workdir) == 3
    codes, logs = run_together(workdir, ("-", "-"), *SPIRAL, devices=2)
    assert codes == [0, 0], logs[0][-2000:] + logs[1][-2000:]
    assert newest(workdir) == 6
    steps, others = (told(f"{workdir}.steps.{i}") for i in range(2))
    assert steps == others and [step["step"] for step in steps] == list(range(6))
    for step in steps:  # the first rollout of a process has nothing before it that could lag
        now = step["step"]
        ages = {now} if now in (0, 3) else {now - 1, now}
        assert {v for turn in step["turns"] for v in turn} == ages and min(step["trained"]["agent"]) == min(ages)
    assert any(len(set(turn)) == 2 for step in steps for turn in step["turns"])
    scalars = metrics.read_scalars(workdir)
    assert scalars["learner/loss"][0].tolist() == list(range(6))
    assert scalars["learner/staleness_max"][1].tolist() == [0, 1, 1, 0, 1, 1]


@pytest.mark.slow
def test_several_processes_write_and_check_programs_while_an_update_goes_on(tmp_path):
    workdir = tmp_path / "run"
    codes, logs = run_together(workdir, ("-", "-"), *SPADE)
    assert codes == [0, 0], logs[0][-2000:] + logs[1][-2000:]
    steps, others = (told(f"{workdir}.steps.{i}") for i in range(2))
    assert steps == others and [step["step"] for step in steps] == list(range(4)) and newest(workdir) == 4
    ages = [[step["step"] - version for version in step["trained"]["agent"]] for step in steps]
    assert {age for step in ages for age in step} == {0, 1} and set(ages[0]) == {0}
    assert any(step["trained"]["designer"] for step in steps)
    scalars = metrics.read_scalars(workdir)
    assert scalars["learner/loss"][0].tolist() == scalars["agent/win_rate"][0].tolist() == list(range(4))
