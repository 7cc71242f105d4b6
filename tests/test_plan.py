"""The planner, on simulated devices."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


def plan(*arguments, variant=":runlocal"):
    command = [sys.executable, "-m", "spade_jax.plan", f"--config={ROOT}/configs/spade_qwen3_30b_a3b.py{variant}"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run([*command, *arguments], env=env, capture_output=True, text=True, timeout=900, check=False)


@pytest.mark.slow
def test_figures_by_hand_on_eight_devices():
    run = plan("--devices=8", "--config.mesh.fsdp=2", "--config.mesh.expert=4", "--config.policy.dtype=bfloat16",
               "--config.policy.architecture.vocab_size=800000")  # fmt: skip
    figures = figures_of(run)
    assert "8 x h100-80g: data 1, fsdp 2, tensor 1, expert 4" in run.stdout
    # Embedding and head, 800,000 x 64 in float32, over fsdp 2; the layers are next to nothing.
    assert figures["weights"] == figures["gradient"] == pytest.approx(2 * 800_000 * 64 * 4 / 2 / 1e9, abs=0.01)
    assert figures["optimiser"] == pytest.approx(2 * figures["weights"], abs=0.01)
    assert figures["sampler's weights"] == pytest.approx(figures["weights"] / 2, abs=0.01)
    # It draws with what it casts, from the learner's own arrays.
    assert figures["weights behind the sampler's"] == 0 and "new weights" not in run.stdout
    sent, parts = re.search(r"each device sends (\S+) GB \((.*)\) per micro-batch", run.stdout).groups()
    by_operation = {part.split()[0]: float(part.split()[1]) for part in parts.split(", ")}
    assert float(sent) == pytest.approx(sum(by_operation.values()), rel=0.02)
    # The other half of embedding and head goes round at least once, in whichever precision.
    assert float(sent) > 2 * 800_000 * 64 * 2 / 2 / 1e9
    assert "\nfits\n" in run.stdout and "decode step of 16 slots" in run.stdout


def figures_of(run):
    assert run.returncode == 0, run.stderr[-2000:]
    return {m[1].strip(): float(m[2]) for m in re.finditer(r"^  (.{34}) *([0-9.]+)", run.stdout, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "behind"),
    [
        # One process, whose rollouts go on during the update: all of it in float32, sharded as the learner's.
        (("--devices=2", "--config.mesh.fsdp=2", "--config.rollout.max_staleness=1"), 0.5),
        # Two, each with a copy on its own device.
        (("--devices=2", "--config.mesh.fsdp=2", "--processes=2"), 1.0),
    ],
)
def test_what_int8_is_made_from_is_counted_where_it_is_a_copy(flags, behind):
    run = plan(*flags, "--config.policy.architecture.vocab_size=800000", "--config.sampler.weight_dtype=int8")
    figures = figures_of(run)
    whole = 2 * 800_000 * 64 * 4 / 1e9  # embedding and head, which stay as they are; the layers are next to nothing
    assert figures["weights"] == pytest.approx(whole / 2, abs=0.01)
    assert figures["weights behind the sampler's"] == pytest.approx(behind * whole, abs=0.01)
    assert figures["sampler's weights"] == pytest.approx(behind * whole, abs=0.01)
    assert figures["new weights beside the old"] >= behind * whole - 0.01
    if "--processes=2" in flags:
        assert f"each device receives {whole / 2:.3g} GB of new weights per update" in run.stdout


# The shape of Qwen3-30B-A3B as its makers publish it.
QWEN3_30B_A3B = dict(
    model_type="qwen3_moe", vocab_size=151_936, hidden_size=2048, moe_intermediate_size=768, num_hidden_layers=48,
    num_attention_heads=32, num_key_value_heads=4, head_dim=128, num_experts=128, num_experts_per_tok=8,
    norm_topk_prob=True, rope_theta=1e6, tie_word_embeddings=False,
)  # fmt: skip


@pytest.mark.slow
def test_the_whole_of_qwen3_30b_a3b_fits_the_mesh_that_its_config_states(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_30B_A3B))
    run = plan("--devices=32", "--device_kind=h100-80g", f"--config.policy.init={tmp_path}", variant="")
    figures = figures_of(run)
    assert "32 x h100-80g: data 1, fsdp 4, tensor 1, expert 8" in run.stdout and "\nfits\n" in run.stdout
    experts = 48 * 128 * 3 * 2048 * 768
    others = 2 * 151_936 * 2048 + 48 * ((2 * 32 + 2 * 4) * 128 + 128) * 2048  # attention and router
    assert figures["weights"] == pytest.approx(4 * (experts / 32 + others / 4) / 1e9, abs=0.02)
    assert figures["cache"] == pytest.approx(48 * 2 * 4 * 128 * 32_768 * 2 / 1e9, abs=0.01)  # one slot a device
    # Of four rows of the cache that all devices were sent it was 75 GB.
    (prefill,) = (size for name, size in figures.items() if name.startswith("prefill of 32 x 256"))
    assert prefill < 20


def test_impossible_meshes_are_one_sentence():
    run = plan("--devices=8", "--config.mesh.data=1", "--config.mesh.expert=3")
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert "cannot be laid over 8 device(s)" in run.stderr
