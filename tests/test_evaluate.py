"""The evaluator as a process: what it refuses. How it counts is in tests/evals."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

from configs import spade_tiny
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import write_config

ROOT = pathlib.Path(__file__).parents[1]


def evaluate(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "spade_jax.evaluate", f"--config={ROOT}/configs/spade_tiny.py", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_figures_that_could_not_be_written_are_not_measured(tmp_path):
    run = evaluate(f"--workdirs={tmp_path}", f"--out={tmp_path}")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "cannot be written; name a file" in line


def test_a_run_that_is_named_twice_is_refused(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    write_config(tmp_path, resolve_preset(spade_tiny.get_config()))
    run = evaluate(f"--workdirs={tmp_path},{tmp_path}", "--suite=games")
    assert run.returncode == 2
    assert "names a workdir twice; name each of them once" in run.stderr and len(run.stderr.splitlines()) == 1


def test_run_of_another_config_is_refused_before_anything_compiles(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    config = resolve_preset(spade_tiny.get_config())
    config.rollout.max_turns = 5
    write_config(tmp_path, config)
    run = evaluate(f"--workdirs={tmp_path}", "--config.run.seed=3")
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "(rollout.max_turns: 5 -> 12); give the run's own config" in line
