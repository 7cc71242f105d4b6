"""The sweep launcher as a user runs it, with a stand-in for the trainer; killed, interrupted, resumed, misused."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.hparams import plugin_data_pb2

from configs import spade_tiny
from launch import hyper
from launch import sweep as sweep_lib
from spade_jax.reporting.sweep_page import interval, write_sweep_report
from spade_jax.runtime import metrics, sweeps
from spade_jax.runtime.errors import UsageError

ROOT = pathlib.Path(__file__).parents[2]
FAKE = pathlib.Path(__file__).with_name("fake_trainer.py")
SIX = "def get_hyper(h):\n    return h.sweep('run.seed', range(6))\n"
STEPS = 3


def write(folder: pathlib.Path, text: str) -> pathlib.Path:
    path = folder / "my_sweep.py"
    path.write_text(text)
    return path


def command(folder: pathlib.Path, *extra: str) -> list[str]:
    return [
        *(sys.executable, "-m", "launch.sweep", f"--sweep={folder}/my_sweep.py", f"--workdir={folder}/root"),
        f"--config={ROOT}/configs/spade_tiny.py:runlocal",
        f"--config.run.steps={STEPS}",
        *extra,
    ]


def fake(*extra: str) -> list[str]:
    return [f"--trainer={sys.executable} {FAKE}", *extra]


def run(folder: pathlib.Path, *extra: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, *extra), cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=1800
    )


def statuses(folder: pathlib.Path) -> list[str]:
    root = folder / "root"
    return [sweeps.outcome(root, one).status for one in sweeps.read_sweep(root)]


def log(folder: pathlib.Path, name: str) -> str:
    return (folder / "root" / name / sweeps.LOG_FILE).read_text()


def start_and_wait(folder: pathlib.Path, line: str, **env: str) -> subprocess.Popen[str]:
    """Starts the sweep, and returns once the first run has printed `line`."""
    process = subprocess.Popen(
        command(folder, *fake("--parallel=2")), cwd=ROOT, env=os.environ | env, stdout=subprocess.PIPE, text=True
    )
    path, until = folder / "root" / "seed=0" / sweeps.LOG_FILE, time.monotonic() + 300
    while not (path.exists() and line in path.read_text()):
        assert time.monotonic() < until and process.poll() is None
        time.sleep(0.02)
    return process


def test_all_runs_but_the_one_that_crashes(tmp_path):
    write(tmp_path, SIX)
    first = run(tmp_path, *fake("--parallel=3"), CRASH_SEED="3")
    assert first.returncode == 1
    assert first.stderr == (
        "error: 1 of 6 runs failed: seed=3; see log.txt in their workdirs, then give the same command with "
        "--retry_failed\n"
    )
    assert statuses(tmp_path) == ["done", "done", "done", "failed", "done", "done"]
    # The binary's own sentence, not the line after it, and nothing that drives a terminal.
    assert "seed=3: failed (exit code 1: error: broken on purpose [31m)\n" in first.stdout
    assert "\x1b" not in first.stdout
    assert log(tmp_path, "seed=5").splitlines()[1:] == ["step 1", "step 2", "step 3"]
    page = (tmp_path / "root" / "sweep.html").read_text()
    assert "5 done, 1 failed" in page and "broken on purpose" in page

    page_command = [sys.executable, "-m", "spade_jax.report", f"--sweep={tmp_path}/root"]
    other = subprocess.run([*page_command, f"--out={tmp_path}/o.html"], cwd=ROOT, capture_output=True, check=True)
    assert (tmp_path / "o.html").read_text() == page and other.stdout.decode() == f"wrote {tmp_path}/o.html\n"
    both = subprocess.run([*page_command, "--workdir=w"], cwd=ROOT, capture_output=True)
    assert both.returncode == 2 and b"--sweep goes with --out alone" in both.stderr

    again = run(tmp_path, *fake())
    assert again.returncode == 1 and "started" not in again.stdout and "seed=3: failed" in again.stdout
    retried = run(tmp_path, *fake("--retry_failed"))
    assert retried.returncode == 0 and retried.stdout.count("started") == 1
    assert statuses(tmp_path) == ["done"] * 6


def test_killed_and_resumed_with_one_crash(tmp_path):
    """Its runs end with it, each after its step; the same command goes on with them, and waits where one is busy."""
    write(tmp_path, SIX)
    process = start_and_wait(tmp_path, "step 2", CRASH_SEED="1", STEP_SECS="1", STUBBORN="")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    resumed = run(tmp_path, *fake("--parallel=2"), CRASH_SEED="1")
    assert resumed.returncode == 1 and "1 of 6 runs failed: seed=1" in resumed.stderr
    assert statuses(tmp_path) == ["done", "failed", "done", "done", "done", "done"]
    assert "5 done, 1 failed" in (tmp_path / "root" / "sweep.html").read_text()
    for seed in (0, 2, 3, 4, 5):
        steps = [line for line in log(tmp_path, f"seed={seed}").splitlines() if line.startswith("step")]
        assert steps == ["step 1", "step 2", "step 3"]  # none lost, none done twice


def test_ctrl_c_stops_after_the_step_and_the_same_command_goes_on(tmp_path):
    write(tmp_path, SIX)
    process = start_and_wait(tmp_path, "step 1", STEP_SECS="300")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "stopping every run after its step" in output and output.endswith("stopped; the same command goes on\n")
    assert "seed=0: stopped (1 of 3 steps are in a checkpoint)" in output
    assert statuses(tmp_path) == ["stopped", "stopped", "waiting", "waiting", "waiting", "waiting"]
    assert run(tmp_path, *fake("--parallel=2")).returncode == 0
    assert statuses(tmp_path) == ["done"] * 6
    assert log(tmp_path, "seed=0").count("step 1") == 1


def test_a_second_ctrl_c_does_not_wait_for_the_step(tmp_path):
    write(tmp_path, SIX)
    process = start_and_wait(tmp_path, "step 1", STEP_SECS="300", STUBBORN="")
    process.send_signal(signal.SIGINT)
    while "stopping" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 130 and "what is lost" in output
    assert statuses(tmp_path)[:2] == ["stopped", "stopped"]


def test_one_launcher_at_a_time(tmp_path):
    write(tmp_path, SIX)
    process = start_and_wait(tmp_path, "step 1", STEP_SECS="300")
    try:
        second = run(tmp_path, *fake())
        assert second.returncode == 2 and "is in use by another run" in second.stderr
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def test_gpus_are_shared_out(tmp_path):
    write(tmp_path, "def get_hyper(h):\n    return h.sweep('run.seed', range(2))\n")
    flags = fake("--parallel=2", "--gpus_per_run=2")
    few = run(tmp_path, *flags, CUDA_VISIBLE_DEVICES="0,1,2")
    assert few.returncode == 2 and "needs 4 GPUs, but 3 can be seen; lower either" in few.stderr
    assert run(tmp_path, *flags, CUDA_VISIBLE_DEVICES="4,5,6,7", STEP_SECS="0.3").returncode == 0
    seen = sorted(log(tmp_path, f"seed={seed}").splitlines()[0] for seed in range(2))
    assert seen == ["gpus 4,5", "gpus 6,7"]


def test_dry_run_prints_and_writes_nothing(tmp_path):
    write(tmp_path, "def get_hyper(h):\n    return h.zip(h.sweep('run.seed', (1, 2)), h.sweep('gate.checks', C))\n"
          "C = (('parse', 'contract'), ('parse', 'contract', 'sealed'))\n")  # fmt: skip
    printed = run(tmp_path, "--dry_run", "--config.method.preset=paper")
    assert printed.returncode == 0 and not (tmp_path / "root").exists()
    lines = printed.stdout.splitlines()
    assert lines[0] == "# seed=1_checks=parse+contract: waiting"
    assert "-m spade_jax.train --config=" in lines[1] and "--config.method.preset=paper" in lines[1]
    assert """--config.gate.checks=('"'"'parse'"'"', '"'"'contract'"'"')'""" in lines[1]


@pytest.mark.slow
def test_slurm_array_has_what_is_left_and_its_tasks_run_it(tmp_path):
    write(tmp_path, SIX)
    script, environment = tmp_path / "array.sh", {"CRASH_SEED": "1"}
    assert "for 6 runs" in run(tmp_path, *fake(f"--slurm={script}")).stdout
    assert "#SBATCH --array=0,1,2,3,4,5%1\n" in script.read_text()
    assert run(tmp_path, *fake("--task=0"), **environment).returncode == 0
    failed = run(tmp_path, *fake("--task=1"), **environment)
    assert failed.returncode == 1 and "seed=1" in failed.stderr
    written = run(tmp_path, *fake(f"--slurm={script}", "--parallel=4"))
    assert written.returncode == 0 and "for 4 runs" in written.stdout
    text = script.read_text()
    assert "#SBATCH --array=2,3,4,5%4\n" in text and "#SBATCH --signal=B:TERM@180\n" in text
    # Comments and directives come first: Slurm reads no directive below a command.
    commands = [line for line in text.splitlines() if not line.startswith("#")]
    assert commands[0] == "set -euo pipefail"
    task = subprocess.run(["bash", str(script)], env=os.environ | {"SLURM_ARRAY_TASK_ID": "4"}, cwd=tmp_path)
    assert task.returncode == 0
    assert statuses(tmp_path) == ["done", "failed", "waiting", "waiting", "done", "waiting"]
    outside = run(tmp_path, *fake("--task=6"))
    assert outside.returncode == 2 and "--task=6 is not among the 6 runs" in outside.stderr
    write(tmp_path, SIX.replace("range(6)", "range(1, 7)"))
    shifted = run(tmp_path, *fake("--task=2"))
    assert shifted.returncode == 2 and "has changed since the array was written" in shifted.stderr


def test_a_longer_sweep_keeps_what_is_done(tmp_path):
    write(tmp_path, "def get_hyper(h):\n    return h.sweep('run.seed', range(2))\n")
    assert run(tmp_path, *fake()).returncode == 0
    write(tmp_path, SIX)
    more = run(tmp_path, *fake("--parallel=4"))
    assert more.returncode == 0 and more.stdout.count("started") == 4


@pytest.mark.slow
def test_the_trainer_itself(tmp_path):
    """A run that works, and one whose mesh cannot be laid over this machine's devices."""
    write(tmp_path, "def get_hyper(h):\n    return h.sweep('mesh.tensor', (1, 5))\n")
    small = ["rollout.active_skills=1", "rollout.seeds=2", "rollout.min_pairs=2", "evaluation.every_steps=0"]
    settings = [f"--config.{setting}" for setting in (*small, "run.steps=1")]  # the last of two values counts
    result = run(tmp_path, *settings, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="1")
    assert statuses(tmp_path) == ["done", "failed"], result.stdout
    assert result.returncode == 1 and "exit code 2: error: mesh.data=-1, mesh.fsdp=1, mesh.tensor=5" in result.stdout
    assert (tmp_path / "root" / "sweep.html").stat().st_size > 10_000
    # The hparams page has the key that was swept, though it is none of those that are always shown.
    events = EventAccumulator(str(tmp_path / "root" / "tensor=1" / "metrics"))
    events.Reload()
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(content).session_start_info
    assert session.hparams["mesh.tensor"].number_value == 1 and session.hparams["run.seed"].number_value == 0


def plan(tmp_path, text, **common):
    config = spade_tiny.get_config("runlocal")
    return sweep_lib.plan(str(write(tmp_path, text)), config, common, tmp_path / "root")


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("h.sweep('run.sed', (1,))", "sets run.sed, which is not a key of the config; did you mean run.seed"),
        ("h.sweep('run', (1,))", "sets run, which is not a key"),
        ("h.sweep('run.seed', ('a',))", "run.seed='a' is not of this key's type"),
        ("h.sweep('learner.tis_cap', (0.5,))", "the run of .* cannot work: learner.tis_cap=0.5 is out of range"),
        ("h.sweep('run.seed', (1, 1))", "are the same run; drop one"),
        # Two ways to say the same: strict is what the key's preset sets it to.
        ("h.fixed('method.preset', 'strict') + h.fixed('method.regret_floor', False)", "are the same run"),
        ("h.sweep('run.steps', (1,))", "--config.run.steps is also set by"),
        ("h.sweep('run.seed', ())", "returned no list of points"),
        ("h.zip(h.fixed('a', 1), [])", "cannot be loaded: h.zip got parts of 1, 0 points"),
        ("1 / 0", "cannot be loaded: division by zero"),
    ],
)
def test_mistakes_are_found_before_anything_starts(tmp_path, points, message):
    with pytest.raises(UsageError, match=message):
        plan(tmp_path, f"def get_hyper(h):\n    return {points}\n", **{"run.steps": 3})


def test_missing_file_and_missing_function(tmp_path):
    with pytest.raises(UsageError, match="does not exist; give a file such as"):
        sweep_lib.plan(f"{tmp_path}/none.py", spade_tiny.get_config(), {}, tmp_path)
    with pytest.raises(UsageError, match="has no get_hyper; write get_hyper"):
        plan(tmp_path, "x = 1\n")


def test_a_workdir_of_another_config_is_refused(tmp_path):
    (runs := plan(tmp_path, SIX))[0]
    workdir = tmp_path / "root" / runs[0].name
    workdir.mkdir(parents=True)
    (workdir / "config.json").write_text(json.dumps(spade_tiny.get_config("runlocal,paper").to_dict()))
    with pytest.raises(UsageError, match="holds a run with another config"):
        plan(tmp_path, SIX)


def test_every_run_sets_every_key_and_is_named_by_its_own(tmp_path):
    methods = "[{}] + h.fixed('method.regret_floor', True) + h.fixed('method.preset', 'paper')"
    runs = plan(tmp_path, f"def get_hyper(h):\n    return h.product({methods}, h.sweep('run.seed', (7,)))\n")
    assert [one.name for one in runs] == ["baseline", "regret_floor=True", "preset=paper"]
    assert [one.settings["method.regret_floor"] for one in runs] == [False, True, True]
    assert {tuple(one.settings) for one in runs} == {("run.seed", "method.regret_floor", "method.preset")}


def test_long_and_clashing_names_stay_apart(tmp_path):
    paths = ["builtin", f"builtin,{__file__}", f"builtin, {__file__}"]
    names = [one.name for one in plan(tmp_path, f"def get_hyper(h):\n    return h.sweep('corpus.path', {paths})\n")]
    assert names[0] == "path=builtin" and len(set(names)) == 3 and max(map(len, names)) <= 100
    parts = "h.sweep('sampler.agent.top_k', (1, 2)), h.sweep('sampler.hint.top_k', (1, 2))"
    tails = plan(tmp_path, f"def get_hyper(h):\n    return h.product({parts})\n")
    assert tails[1].name == "sampler.agent.top_k=1_sampler.hint.top_k=2"
    games = "(('snake', 'pig_dice'), ('snake',))"
    lists = plan(tmp_path, f"def get_hyper(h):\n    return h.sweep('selfplay.games', {games})\n")
    assert [one.name for one in lists] == ["games=snake+pig_dice", "games=snake"]


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "sweeps").glob("*.py")), ids=lambda p: p.stem)
def test_shipped_sweeps_can_be_planned(tmp_path, path):
    runs = sweep_lib.plan(str(path), spade_tiny.get_config(), {}, tmp_path)
    promised = re.search(r"(\d+) runs", path.read_text())
    assert len(runs) == int(promised[1] if promised else 3)
    assert max(len(one.name) for one in runs) < 60


def test_interval_is_student_s():
    # Mean 2, standard deviation 1, t = 4.303 with 2 degrees of freedom: 4.303 / sqrt(3).
    assert interval([1.0, 2.0, 3.0]) == pytest.approx((2.0, 2.4843), abs=1e-4)
    assert interval([1.0, 2.0, 3.0, float("nan")]) == interval([1.0, 2.0, 3.0])
    mean, half = interval([0.5])
    assert mean == 0.5 and np.isnan(half)
    assert np.isnan(interval([])[0])
    mean, half = interval([0.0, 1.0] * 50)
    assert half == pytest.approx(1.96 * np.std([0.0, 1.0] * 50, ddof=1) / 10)


def test_page_has_means_over_seeds_and_leaves_failed_runs_out(tmp_path):
    points = hyper.product(hyper.sweep("a.rate", (0.1, 0.2)), hyper.sweep("run.seed", range(3)))
    runs = [sweeps.SweepRun(f"rate={p['a.rate']}_seed={p['run.seed']}", list(p), dict(p), 2) for p in points]
    (tmp_path / "root").mkdir()
    root = tmp_path / "root"
    sweeps.write_sweep(root, runs)
    assert sweeps.read_sweep(root) == runs
    for one in runs[:-1]:
        (root / one.name / "checkpoints" / "2").mkdir(parents=True)
        with metrics.MetricWriter(root / one.name / "metrics") as writer:
            for step in (0, 1):
                writer.scalars(step, {"agent/win_rate": one.settings["a.rate"] + 0.1 * one.settings["run.seed"]})
        sweeps.record_exit(root, one, 0 if one is not runs[4] else -signal.SIGKILL, asked_to_stop=False)
    page = write_sweep_report(root, root / "page.html").read_text()
    assert "4 done, 1 failed, 1 waiting" in page
    # Seeds give .1, .2, .3: mean .2 and t interval 4.303 * .1 / sqrt(3) = .2484.
    assert re.search(r"rate=0\.1</code></td><td>3 of 3</td><td>—</td><td>20\.0\s%\s±\s24\.8\s%", page)
    # One of three failed and one never began: .2 alone, and no interval.
    assert re.search(r"rate=0\.2</code></td><td>1 of 3</td><td>—</td><td>20\.0\s%</td>", page)
    assert "killed by SIGKILL, for want of memory?" in page
    assert page.count('<figure class="chart wide"') == 1


def test_page_of_self_play_has_its_own_measures(tmp_path):
    points = hyper.product(hyper.sweep("selfplay.opponent", ("self", "random")), hyper.sweep("run.seed", range(2)))
    runs = [sweeps.SweepRun(f"{p['selfplay.opponent']}_{p['run.seed']}", list(p), dict(p), 1) for p in points]
    root = tmp_path / "root"
    root.mkdir()
    sweeps.write_sweep(root, runs)
    for one in runs:
        (root / one.name / "checkpoints" / "1").mkdir(parents=True)
        with metrics.MetricWriter(root / one.name / "metrics") as writer:
            writer.scalars(0, {"selfplay/kuhn_poker/moves": 2.5, "learner/grad_variance": 0.25})
            writer.scalars(1, {"eval/kuhn_poker/exploitability": 0.1 if one.settings["run.seed"] else 0.3})
        sweeps.record_exit(root, one, 0, asked_to_stop=False)
    page = write_sweep_report(root, root / "page.html").read_text()
    heads = "<th>seeds</th><th>exploitability of Kuhn poker, antes</th><th>variance of the gradient</th>"
    assert heads + "</tr>" in page
    assert "variance of the gradient, powers of ten" in page
    # Seeds give .3 and .1: mean .2 and t interval 12.706 * .1414 / sqrt(2) = 1.27.
    assert re.search(r"opponent=random</code></td><td>2 of 2</td><td>0\.2\d*\s±\s1\.27\d*</td><td>0\.25\d*\s±\s0", page)


def test_not_a_sweep(tmp_path):
    with pytest.raises(UsageError, match="holds no sweep"):
        write_sweep_report(tmp_path, tmp_path / "page.html")
    (tmp_path / "sweep.json").write_text('{"runs": [{"name": 1}]}')
    with pytest.raises(UsageError, match="cannot be read .*give the sweep's command again"):
        write_sweep_report(tmp_path, tmp_path / "page.html")
