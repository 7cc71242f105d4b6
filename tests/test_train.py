"""The trainer as a user runs it: as a process, killed, resumed, misused."""

import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from configs import spade_tiny
from spade_jax import compose
from spade_jax.designer.memory import Memory
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.runtime import metrics, transcripts
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.presets import resolve_preset

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 4
SMALL = [
    f"--config={ROOT}/configs/spade_tiny.py:runlocal",
    f"--config.run.steps={STEPS}",
    "--config.checkpoint.save_steps=1",
    "--config.rollout.seeds=3",
    "--config.rollout.min_pairs=2",
]


def command(workdir, *extra):
    return [sys.executable, "-m", "spade_jax.train", f"--workdir={workdir}", *SMALL, *extra]


def environment(**extra):
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **extra}


def train(workdir, *extra, **environ):
    return subprocess.run(
        command(workdir, *extra), env=environment(**environ), capture_output=True, text=True, timeout=900, check=False
    )



@dataclasses.dataclass
class Outcome:
    """Everything a run leaves that must not depend on how often it was interrupted."""

    params: list
    opt_state: list
    baselines: np.ndarray
    host: dict
    memory: str
    scalars: dict
    transcripts: list


def outcome(workdir) -> Outcome:
    settings = resolve_preset(spade_tiny.get_config("runlocal"))
    model, params = compose.policy(settings, compose.chat_template(settings))
    optimizer = state_lib.make_optimizer(compose.optimizer_config(settings), model)
    mesh = partitioning.make_mesh()
    state = compose.train_state(settings, model, optimizer, mesh, params)
    with Checkpointer(f"{workdir}/checkpoints", keep=1, read_only=True) as checkpointer:
        restored = checkpointer.restore(state)
    assert restored.step == STEPS
    with Memory(f"{workdir}/{compose.ENVIRONMENTS_FILE}") as memory:
        digest = memory.digest()
    scalars = {
        tag: (steps.tolist(), values.tolist())
        for tag, (steps, values) in metrics.read_scalars(workdir).items()
        if not tag.startswith("perf/")
    }
    files = sorted(pathlib.Path(workdir, "transcripts").glob("*.gz"))
    return Outcome(
        params=[np.asarray(leaf) for leaf in jax.tree.leaves(restored.state.params)],
        opt_state=[np.asarray(leaf) for leaf in jax.tree.leaves(restored.state.opt_state)],
        baselines=np.asarray(restored.state.baselines),
        host=restored.host,
        memory=digest,
        scalars=scalars,
        transcripts=[(file.name, file.read_bytes()) for file in files],
    )


def assert_same(a: Outcome, b: Outcome):
    for name in ("params", "opt_state"):
        for x, y in zip(getattr(a, name), getattr(b, name), strict=True):
            np.testing.assert_array_equal(x, y)
    np.testing.assert_array_equal(a.baselines, b.baselines)
    assert a.host == b.host
    assert a.memory == b.memory
    assert json.dumps(a.scalars) == json.dumps(b.scalars)  # NaN equals NaN as text
    assert a.transcripts == b.transcripts


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """An uninterrupted run."""
    workdir = tmp_path_factory.mktemp("finished")
    run = train(workdir)
    assert run.returncode == 0, run.stderr
    return workdir, run.stdout


@pytest.fixture(scope="module")
def expected(finished):
    return outcome(finished[0])


@pytest.mark.slow
def test_every_step_prints_a_line_and_the_end_says_where_to_look(finished):
    workdir, output = finished
    lines = [line for line in output.splitlines() if line.startswith("step ")]
    assert len(lines) == STEPS
    for part in ("regret", "win", "valid", "tokens/s", "left"):
        assert part in lines[0]
    assert f"{workdir}/report.html" in output
    assert "sandbox layers (strict): descriptors, session" in output
    assert (workdir / "report.html").stat().st_size > 10_000


@pytest.mark.slow
def test_the_metrics_of_the_method_are_there(finished):
    scalars = metrics.read_scalars(finished[0])
    one_player = [tag for tag in metrics.TAGS if not tag.startswith(("baseline/", "selfplay/", "eval/"))]
    wanted = {tag.split("<")[0] for tag in one_player} | {"eval/probe/all"}
    wanted -= {"learner/grad_variance"}  # takes two micro-batches, and an update of this run is one
    wanted -= {"learner/router_balance", "learner/router_max_load"}  # of experts: tests/test_adapters.py
    missing = [tag for tag in wanted if not any(logged.startswith(tag) for logged in scalars)]
    assert not missing
    assert np.isfinite(scalars["learner/loss"][1]).all()
    # Where every token was drawn by the policy that is updated, sampler and learner agree.
    on_policy = scalars["learner/staleness"][1] == 0
    assert on_policy.any()
    assert scalars["learner/logp_gap_max"][1][on_policy].max() < 1e-4
    assert scalars["eval/probe/all"][0].tolist() == [0, 2, STEPS]
    # What a step takes is the sum of its phases: nothing is left out, nothing is counted twice.
    steps, whole = scalars["perf/step_seconds"]
    phases = dict.fromkeys(steps.tolist(), 0.0)
    for tag, points in scalars.items():
        for step, seconds in zip(*points, strict=True) if tag.startswith("perf/seconds/") else ():
            phases[step] += seconds
    np.testing.assert_allclose(list(phases.values()), whole, rtol=0.05)


@pytest.mark.slow
def test_programs_verdicts_and_transcripts_are_kept(finished):
    workdir, _ = finished
    with Memory(workdir / compose.ENVIRONMENTS_FILE) as memory:
        programs = memory.programs()
    assert programs
    assert all(record.report is not None for _, record in programs)
    episodes = list(transcripts.read_transcripts(transcripts.transcript_path(workdir / "transcripts", 0)))
    assert {episode["arm"] for episode in episodes} == {"plain", "hinted"}


@pytest.mark.slow
def test_same_seed_same_everything(expected, tmp_path):
    run = train(tmp_path)
    assert run.returncode == 0, run.stderr
    assert_same(outcome(tmp_path), expected)


@pytest.mark.slow
def test_another_seed_is_another_run(finished, tmp_path):
    run = train(tmp_path, "--config.run.seed=1", "--config.run.steps=1", "--config.evaluation.every_steps=0")
    assert run.returncode == 0, run.stderr
    first = transcripts.transcript_path("transcripts", 0)
    assert (tmp_path / first).read_bytes() != (finished[0] / first).read_bytes()


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_in_the_same_bits(expected, tmp_path):
    """kill -9 at uneven moments, one of them while a checkpoint may be under way, until it gets through."""
    kills = 0
    for lines_before_kill, delay in ((1, 0.0), (1, 1.5), (2, 0.4)):
        process = subprocess.Popen(
            command(tmp_path), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        seen = 0
        for line in process.stdout:
            seen += line.startswith("step ")
            if seen == lines_before_kill:
                break
        time.sleep(delay)
        kills += process.poll() is None
        process.kill()
        process.wait()
        process.stdout.close()
    assert kills >= 2
    run = train(tmp_path)
    assert run.returncode == 0, run.stderr
    assert_same(outcome(tmp_path), expected)


@pytest.mark.slow
def test_asked_to_stop_while_the_last_checkpoint_is_written_it_writes_it(tmp_path):
    """A scheduler may ask more than once, and at any moment."""
    code = (
        "import os, signal\nfrom spade_jax import train\nfrom spade_jax.runtime.checkpoint import Checkpointer\n"
        "close = Checkpointer.close\n"
        "def asked(self):\n    os.kill(os.getpid(), signal.SIGTERM)\n    close(self)\n"
        "Checkpointer.close = asked\ntrain.run()"
    )
    settings = command(tmp_path, "--config.run.steps=1", "--config.evaluation.every_steps=0")[3:]
    run = subprocess.run(
        [sys.executable, "-c", code, *settings], env=environment(), capture_output=True, text=True, timeout=900
    )
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "checkpoints" / "1").is_dir() and (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_asked_to_stop_it_checkpoints_and_goes_on_later(expected, tmp_path):
    process = subprocess.Popen(
        command(tmp_path, "--config.checkpoint.save_steps=0", "--config.checkpoint.save_secs=0"),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not process.stdout.readline().startswith("step 1/"):
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    assert "with a checkpoint" in output
    run = train(tmp_path)
    assert run.returncode == 0, run.stderr
    assert_same(outcome(tmp_path), expected)


@pytest.mark.slow
def test_a_finished_run_says_so_and_changes_nothing(finished, expected):
    workdir, _ = finished
    run = train(workdir)
    assert run.returncode == 0, run.stderr
    assert_same(outcome(workdir), expected)


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (["--config.learner.clip_lo=1"], ["clip_lo", "clip_low"]),
        (["--config.mesh.tensor=3"], ["mesh.tensor=3"]),
        (["--config.corpus.path=/no/such/file"], ["corpus.path=/no/such/file", "does not exist"]),
        (["--config.rollout.seeds=many"], ["rollout.seeds", "many"]),
        (["--config.policy.init=/no/such/policy.npz"], ["policy.init"]),
        (["--config.sampler.agent.temperature=0"], ["sampler.agent.temperature"]),
    ],
)
def test_bad_input_gets_one_sentence_and_leaves_nothing(tmp_path, flags, parts):
    workdir = tmp_path / "run"
    run = train(workdir, *flags)
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith("error: ")
    for part in parts:
        assert part in line
    assert not (workdir / "checkpoints").exists()


@pytest.mark.slow
def test_a_workdir_of_another_config_is_refused(finished):
    run = train(finished[0], "--config.rollout.regenerate_every=1")
    assert run.returncode == 2
    assert "rollout.regenerate_every: 2 -> 1" in run.stderr


@pytest.mark.slow
def test_a_damaged_checkpoint_costs_only_its_steps(finished, expected, tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(finished[0], broken)
    for file in (broken / "checkpoints" / str(STEPS)).rglob("*"):
        if file.is_file() and file.stat().st_size > 0 and "state" in file.parts:
            file.write_bytes(b"x")
    run = train(broken)
    assert run.returncode == 0
    (line,) = run.stderr.strip().splitlines()
    assert f"checkpoints/{STEPS} cannot be read" in line
    assert f"the run goes on from step {STEPS - 1}" in line
    assert_same(outcome(broken), expected)


@pytest.mark.slow
def test_eight_devices_train_as_one_does(expected, tmp_path):
    """The sampler's and the gate's part is exact; the update agrees up to rounding."""
    mesh = ("--config.mesh.data=4", "--config.mesh.fsdp=2")
    run = train(tmp_path, "--config.run.steps=1", *mesh, JAX_NUM_CPU_DEVICES="8")
    assert run.returncode == 0, run.stderr
    scalars = metrics.read_scalars(tmp_path)
    for tag in ("designer/valid_share", "agent/win_rate", "designer/regret"):
        assert scalars[tag][1][0] == expected.scalars[tag][1][0]
    np.testing.assert_allclose(scalars["learner/loss"][1][0], expected.scalars["learner/loss"][1][0], atol=1e-4)
    np.testing.assert_allclose(
        scalars["learner/grad_norm"][1][0], expected.scalars["learner/grad_norm"][1][0], rtol=1e-3
    )
