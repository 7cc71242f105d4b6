"""Adapters as a user trains them: from a Hugging Face folder, resumed in the middle, exported."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax import compose
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.policy import Decoder, DecoderConfig, huggingface, init_params, safetensors, split_adapters
from spade_jax.policy.importing import open_model
from spade_jax.policy.weights import exported
from spade_jax.runtime import metrics
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.workdir import read_config

ROOT = pathlib.Path(__file__).parents[1]
RANK, ALPHA = 2, 8.0
CONTEXT = 4096  # more than the run samples
MODEL = DecoderConfig(
    vocab_size=1024, embed_dim=32, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=16, qk_norm=True,
    num_experts=4, experts_per_token=2, tied_head=False,
)  # fmt: skip


def run(binary, *arguments):
    command = [sys.executable, "-m", f"spade_jax.{binary}", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    found = subprocess.run(command, env=env, capture_output=True, text=True, timeout=1100, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    return found.stdout


def train(folder, workdir):
    return run(
        "train",
        f"--config={ROOT}/configs/spiral_tiny.py:runlocal",
        f"--workdir={workdir}",
        "--config.run.steps=2",
        "--config.checkpoint.save_steps=1",
        "--config.selfplay.opponent=snapshot",
        "--config.selfplay.matches=8",
        "--config.evaluation.every_steps=0",
        "--config.sampler.weight_dtype=int8",
        f"--config.policy.init={folder}",
        "--config.policy.dtype=bfloat16",
        f"--config.policy.lora.rank={RANK}",
        f"--config.policy.lora.alpha={ALPHA}",
        "--config.learner.optimizer.kind=adamw",
        "--config.learner.optimizer.learning_rate=0.01",
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random mixture of experts, as its makers would publish it."""
    folder = tmp_path_factory.mktemp("model")
    params = init_params(Decoder(MODEL), jax.random.key(0))
    safetensors.write_folder(folder, dict(exported(params, MODEL)), "float32", 1 << 30)
    settings = huggingface.to_huggingface(MODEL, context=CONTEXT, dtype="float32")
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


@pytest.fixture(scope="module")
def workdir(folder, tmp_path_factory):
    workdir = tmp_path_factory.mktemp("runs") / "run"
    train(folder, workdir)
    return workdir


def state_of(workdir):
    config = read_config(workdir)
    model, params = compose.policy(config, compose.chat_template(config))
    optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
    state = compose.train_state(config, model, optimizer, partitioning.make_mesh(), params)
    with Checkpointer(f"{workdir}/checkpoints", keep=1, read_only=True) as checkpointer:
        restored = checkpointer.restore(state)
    assert restored.step == 2
    return restored.state


@pytest.mark.slow
def test_adapters_alone_change_and_have_optimiser_state(folder, workdir):
    state, (lazy, _) = state_of(workdir), open_model(folder)
    adapters, frozen = split_adapters(state.params)
    # Half of the adapters' factors were 0 at first.
    assert all(leaf.dtype == jnp.float32 and np.any(leaf) for leaf in jax.tree.leaves(adapters))
    moments = sum(leaf.size for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim)
    assert moments == 2 * sum(leaf.size for leaf in jax.tree.leaves(adapters))
    norms = 0
    for (path, ours), theirs in zip(jax.tree_util.tree_leaves_with_path(frozen), jax.tree.leaves(lazy), strict=True):
        theirs, norm = np.asarray(theirs[...]), "scale" in jax.tree_util.keystr(path)
        norms += norm
        assert ours.dtype == (jnp.float32 if norm else jnp.bfloat16), path
        np.testing.assert_array_equal(ours, theirs.astype(ours.dtype), err_msg=str(path))
    assert norms == 5  # two of every layer, those of queries and keys, the last one
    scalars = metrics.read_scalars(workdir)
    kl = scalars["learner/kl_reference"][1]
    assert kl[0] >= 0 and kl[1] > 1e-6
    for tag in ("learner/router_balance", "learner/router_max_load"):
        assert np.all((scalars[tag][1] >= 0.99) & (scalars[tag][1] <= MODEL.num_experts))


@pytest.mark.slow
def test_a_run_that_is_resumed_ends_in_the_same_bits(folder, workdir, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints" / "2")
    assert "step 2/2" in train(folder, again)
    want, got = (jax.tree.leaves((s.params, s.opt_state, s.baselines)) for s in map(state_of, (workdir, again)))
    for a, b in zip(want, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_what_is_exported_has_them_merged(workdir, tmp_path):
    run("export", f"--workdir={workdir}", f"--out={tmp_path / 'out'}")
    params, (lazy, config) = jax.device_get(state_of(workdir).params), open_model(tmp_path / "out")
    assert config.lora is None and config.num_experts == 4
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    template = compose.chat_template(read_config(workdir))
    assert settings["max_position_embeddings"] == CONTEXT
    assert settings["eos_token_id"] == template.tokenizer.end_id  # which its makers' config does not name
    for block, name in (("attention", "q"), ("attention", "o"), ("mlp", "down")):
        ours = params["layers"][block]
        lead = 2 if block == "mlp" else 1
        first, second = (ours[f"{name}_lora_{x}"].astype(np.float64) for x in "ab")
        first = first.reshape(*first.shape[:lead], -1, RANK)
        second = second.reshape(*second.shape[:lead], RANK, -1)
        added = ALPHA / RANK * (first @ second)
        weight = ours[name].astype(np.float64)
        merged = np.asarray(lazy["layers"][block][name][...])
        np.testing.assert_allclose(merged, weight + added.reshape(weight.shape), atol=1e-6)
        assert np.abs(merged - weight).max() > 1e-4  # more than bfloat16 would round away at this size
    np.testing.assert_array_equal(lazy["embedding"][...], params["embedding"].astype(np.float32))
