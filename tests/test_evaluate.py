"""The evaluator: what it refuses, and how it counts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from configs import spade_tiny
from spade_jax import evaluate
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import write_config

ROOT = pathlib.Path(__file__).parents[1]


def test_summary_by_hand():
    """One void play at the start, one after training: instances 0 and 1 of run 1 give no gain."""
    start_N = np.array([np.nan, 0.0, 0.0, 1.0])
    trained_RxN = np.array([[1.0, 0.0, 1.0, 1.0], [1.0, np.nan, 1.0, 0.0]])
    row = evaluate.summary(start_N, trained_RxN)
    assert row["start"] == pytest.approx(1 / 3)
    assert row["trained"] == pytest.approx(5 / 7)
    assert row["gain"] == pytest.approx((0 + 1 + 0 + 1 - 1) / 5)
    assert row["void"] == pytest.approx(2 / 12)
    assert row["interval"][0] <= row["gain"] <= row["interval"][1]


def test_run_of_another_config_is_refused_before_anything_compiles(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    config = resolve_preset(spade_tiny.get_config())
    config.rollout.max_turns = 5
    write_config(tmp_path, config)
    run = subprocess.run(
        [
            sys.executable, "-m", "spade_jax.evaluate", f"--config={ROOT}/configs/spade_tiny.py",
            f"--workdirs={tmp_path}", "--config.run.seed=3",
        ],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )  # fmt: skip
    assert run.returncode == 2
    (line,) = run.stderr.splitlines()
    assert "(rollout.max_turns: 5 -> 12); give the run's own config" in line
