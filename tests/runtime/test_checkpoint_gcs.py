"""Checkpoints on gs://, with a stand-in for Cloud Storage on this machine; collected where extra [gcs] is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import gcs_server
import jax
import pytest
from test_checkpoint import HOST, _assert_same, _state

from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.errors import RunError

pytest.importorskip("gcsfs")
pytest.importorskip("google.cloud.storage")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def server():
    with gcs_server.running() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture
def folder(server, request):
    server.broken = False
    return f"gs://bucket/{request.node.name}/checkpoints"


def saved(folder, *steps, keep=2):
    with Checkpointer(folder, keep=keep) as checkpointer:
        for step in steps:
            checkpointer.save(step, _state(step), HOST | {"step": step})


def restored(folder):
    with Checkpointer(folder, keep=2) as checkpointer:
        return checkpointer.restore(jax.eval_shape(lambda: _state(0)))


def steps_of(server, folder):
    prefix = folder.removeprefix("gs://") + "/"
    found = {name.removeprefix(prefix).split("/")[0] for name in server.names(prefix)}
    return sorted(int(name) for name in found if name.isdigit())


def test_round_trip_keeping_the_newest(server, folder):
    assert restored(folder) is None
    saved(folder, 1, 2, 3)
    found = restored(folder)
    assert (found.step, found.host) == (3, HOST | {"step": 3})
    _assert_same(found.state, _state(3))
    assert steps_of(server, folder) == [2, 3]


def test_one_that_was_not_finished_does_not_count(server, folder):
    saved(folder, 1, 2)
    del server.objects[f"{folder.removeprefix('gs://')}/2/commit_success.txt"]
    assert restored(folder).step == 1
    saved(folder, 2)
    assert restored(folder).step == 2


def test_a_damaged_one_is_moved_aside_and_the_one_before_is_taken(server, folder, capfd):
    saved(folder, 1, 2)
    for name in server.names(f"{folder.removeprefix('gs://')}/2/state/"):
        if "/d/" in name:
            server.objects[name] = (b"damaged", next(server.generations))
    found = restored(folder)
    assert found.step == 1
    assert f"warning: checkpoint {folder}/2 cannot be read" in capfd.readouterr().err
    assert steps_of(server, folder) == [1] and steps_of(server, f"{folder}.damaged") == [2]


def test_a_store_that_refuses_gets_a_sentence_and_the_one_before_is_intact(server, folder):
    saved(folder, 1)
    server.broken = True
    with (
        pytest.raises(RunError, match=f"no checkpoint .* written to {folder} .*; the checkpoint of step 1 is intact"),
        Checkpointer(folder, keep=2) as checkpointer,
    ):
        checkpointer.save(2, _state(2), HOST)
        checkpointer.wait()
    server.broken = False
    assert restored(folder).step == 1


def run(*flags, **environ):
    command = [
        sys.executable, "-m", "spade_jax.train", f"--config={ROOT}/configs/spiral_tiny.py:runlocal",
        "--config.run.steps=2", "--config.checkpoint.save_steps=1", "--config.selfplay.opponent=self",
        "--config.evaluation.every_steps=0", "--config.selfplay.matches=8", "--config.sampler.slots=8", *flags,
    ]  # fmt: skip
    return subprocess.run(command, cwd=ROOT, env=os.environ | environ, capture_output=True, text=True, timeout=900)


def test_the_trainer_goes_on_from_there_and_nobody_else_does(server, folder, tmp_path):
    flags = (f"--workdir={tmp_path / 'a'}", f"--config.checkpoint.dir={folder}")
    first = run(*flags, "--config.run.steps=1")
    assert first.returncode == 0, first.stderr
    assert steps_of(server, folder) == [1] and not (tmp_path / "a" / "checkpoints").exists()
    second = run(*flags)
    assert second.returncode == 0, second.stderr
    assert "step 1/2" not in second.stdout and "step 2/2" in second.stdout
    assert steps_of(server, folder) == [1, 2]
    other = run(f"--workdir={tmp_path / 'b'}", flags[1])
    assert other.returncode == 2, other.stderr
    *_, said = other.stderr.splitlines()  # Google's client misses credentials before
    assert said.startswith(f"error: checkpoint.dir={folder} holds checkpoints (the newest of step 2) of a run whose w")
    command = [sys.executable, "-m", "spade_jax.export", f"--workdir={tmp_path / 'a'}", f"--out={tmp_path / 'model'}"]
    exported = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert exported.returncode == 0 and "of step 2 in" in exported.stdout, exported.stderr


def test_without_the_package_it_is_named():
    script = """
import sys
sys.modules["gcsfs"] = None
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.errors import UsageError
try:
    Checkpointer("gs://bucket/run", keep=1)
except UsageError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.startswith("gs://bucket/run needs the package gcsfs"), done
    assert done.stdout.endswith("install spade_jax[gcs]\n")
