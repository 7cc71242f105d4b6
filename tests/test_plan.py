"""The planner, on simulated devices."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def plan(*arguments):
    command = [sys.executable, "-m", "spade_jax.plan", f"--config={ROOT}/configs/spade_qwen3_30b_a3b.py:runlocal"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_figures_by_hand_on_eight_devices():
    run = plan("--devices=8", "--config.mesh.fsdp=2", "--config.mesh.expert=4", "--config.policy.dtype=bfloat16",
               "--config.policy.architecture.vocab_size=800000")  # fmt: skip
    assert run.returncode == 0, run.stderr[-2000:]
    assert "8 x h100-80g: data 1, fsdp 2, tensor 1, expert 4" in run.stdout
    figures = {m[1].strip(): float(m[2]) for m in re.finditer(r"^  (.{34}) *([0-9.]+)", run.stdout, re.MULTILINE)}
    # Embedding and head, 800,000 x 64 in float32, over fsdp 2; the layers are next to nothing.
    assert figures["weights"] == figures["gradient"] == pytest.approx(2 * 800_000 * 64 * 4 / 2 / 1e9, abs=0.01)
    assert figures["optimiser"] == pytest.approx(2 * figures["weights"], abs=0.01)
    assert figures["sampler's weights"] == pytest.approx(figures["weights"] / 2, abs=0.01)
    sent, parts = re.search(r"each device sends (\S+) GB per micro-batch \((.*)\)", run.stdout).groups()
    by_operation = {part.split()[0]: float(part.split()[1]) for part in parts.split(", ")}
    assert float(sent) == pytest.approx(sum(by_operation.values()), rel=0.02)
    # The other half of embedding and head goes round at least once, in whichever precision.
    assert float(sent) > 2 * 800_000 * 64 * 2 / 2 / 1e9
    assert "\nfits\n" in run.stdout and "decode step of 16 slots" in run.stdout


def test_impossible_meshes_are_one_sentence():
    run = plan("--devices=8", "--config.mesh.data=1", "--config.mesh.expert=3")
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert "cannot be laid over 8 device(s)" in run.stderr
