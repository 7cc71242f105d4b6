"""From a run to a Hugging Face folder and back."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

from configs import spade_qwen3_30b_a3b, spiral_tiny
from spade_jax import compose
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.policy.importing import open_model
from spade_jax.runtime import checks
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import write_config

ROOT = pathlib.Path(__file__).parents[1]


def export(*arguments):
    command = [sys.executable, "-m", "spade_jax.export", *map(str, arguments)]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """What a run leaves of its policy: a config and a checkpoint."""
    folder = tmp_path_factory.mktemp("run")
    config = resolve_preset(spade_qwen3_30b_a3b.get_config("runlocal"))
    model, params = compose.policy(config, compose.chat_template(config))
    optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
    state = compose.train_state(config, model, optimizer, partitioning.make_mesh(), params)
    with Checkpointer(f"{folder}/checkpoints", keep=1) as checkpointer:
        checkpointer.save(3, state, {})
    write_config(folder, config)
    return folder, state.params


@pytest.mark.slow
def test_what_is_exported_is_imported_bit_by_bit(workdir, tmp_path):
    folder, params = workdir
    run = export(f"--workdir={folder}", f"--out={tmp_path / 'out'}")
    assert run.returncode == 0, run.stderr[-2000:]
    assert "69 tensors of step 3 in model.safetensors, config.json, tokenizer.model" in run.stdout
    loaded, config = open_model(tmp_path / "out")
    assert (config.num_experts, config.experts_per_token, config.qk_norm, config.tied_head) == (8, 2, True, False)
    for path in (("embedding",), ("layers", "mlp", "down"), ("layers", "attention", "o")):
        ours, theirs = params, loaded
        for key in path:
            ours, theirs = ours[key], theirs[key]
        np.testing.assert_array_equal(np.asarray(ours), theirs[...])


@pytest.mark.parametrize("name", checks.EMBEDDED)
def test_an_embedded_tokenizer_goes_along(name, tmp_path):
    config = spiral_tiny.get_config()
    config.tokens.tokenizer = name
    # In a process of its own: the flags of two binaries do not go together.
    code = (
        "import pathlib, sys\nfrom configs import spiral_tiny\nfrom spade_jax import compose, export\n"
        "config = spiral_tiny.get_config()\nconfig.tokens.tokenizer = sys.argv[1]\n"
        "print(export.copy_tokenizer(config, compose.chat_template(config), pathlib.Path(sys.argv[2])))"
    )
    command = [sys.executable, "-c", code, name, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert run.stdout.strip() == "['tokenizer.model']"
    assert (tmp_path / "tokenizer.model").read_bytes() == compose.tokenizer_path(config).read_bytes()


@pytest.mark.slow
def test_bad_arguments_are_one_sentence(workdir, tmp_path):
    folder, _ = workdir
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for arguments, message in (
        ((f"--workdir={tmp_path}", f"--out={tmp_path / 'new'}"), "holds no checkpoints"),
        ((f"--workdir={folder}", f"--out={tmp_path / 'full'}"), "is there already"),
    ):
        run = export(*arguments)
        assert run.returncode == 2 and message in run.stderr and "Traceback" not in run.stderr


@pytest.mark.slow
def test_a_full_disk_leaves_nothing_so_that_the_same_command_may_be_given_again(workdir, tmp_path):
    # No file larger than that: what a full disk is to a writer.
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100_000,) * 2)\n"
    code = limited + "from spade_jax import export\nexport.run()"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", code, f"--workdir={workdir[0]}", f"--out={tmp_path / 'out'}"]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stderr.count("\n")) == (1, 1) and "the disk is full" in run.stderr
    assert not list((tmp_path / "out").iterdir())
