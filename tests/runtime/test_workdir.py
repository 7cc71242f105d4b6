from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from configs import base
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import (
    EVALUATION,
    WorkdirLock,
    checkpoint_folder,
    compare_config,
    compare_evaluation,
    config_differences,
    flatten,
    local_folder,
    refuse_foreign,
    write_config,
)

_HOLD = """
import os, sys, time
from spade_jax.runtime.workdir import WorkdirLock
lock = WorkdirLock(sys.argv[1])
if os.fork() == 0:          # an orphan, as a sandbox child might be
    time.sleep(30)
    os._exit(0)
print("held", flush=True)
time.sleep(30)
"""


def test_second_run_is_refused_until_the_first_dies(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UsageError, match=rf"in use by another run \(process {holder.pid} on"):
            WorkdirLock(tmp_path)
        holder.kill()  # the orphan lives on and must not keep the lock
        holder.wait()
        with WorkdirLock(tmp_path):
            assert (tmp_path / ".lock").read_text().startswith(f"{os.getpid()} on")
    finally:
        os.killpg(holder.pid, signal.SIGKILL)
        holder.stdout.close()


def test_impossible_workdir(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be used"):
        WorkdirLock(tmp_path / "file")


def test_a_workdir_is_on_a_disk_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert local_folder("workdir", "a") == str(tmp_path / "a")
    with pytest.raises(UsageError, match=r"--workdir=gs://b/a is on no disk .* --config.checkpoint.dir=gs://b/a/checkp"):
        local_folder("workdir", "gs://b/a")


def test_checkpoints_are_where_the_runs_config_says_and_are_no_other_runs(tmp_path):
    config = resolve_preset(base.get_config())
    assert checkpoint_folder(tmp_path) == f"{tmp_path}/checkpoints"
    write_config(tmp_path, config)
    assert checkpoint_folder(tmp_path) == f"{tmp_path}/checkpoints"
    config.checkpoint.dir = "gs://bucket/a"
    refuse_foreign(tmp_path / "new", config, None)
    with pytest.raises(UsageError, match=r"gs://bucket/a holds checkpoints \(the newest of step 7\) of a run whose"):
        refuse_foreign(tmp_path / "new", config, 7)
    with pytest.raises(UsageError, match="checkpoint.dir:  -> gs://bucket/a"):
        compare_config(tmp_path, config)
    write_config(tmp_path, config)
    assert checkpoint_folder(tmp_path) == "gs://bucket/a"
    refuse_foreign(tmp_path, config, 7)


def test_config_is_written_and_compared(tmp_path):
    config = resolve_preset(base.get_config())
    assert compare_config(tmp_path, config) == []
    assert not (tmp_path / "config.json").exists()  # a start that is refused later must not bind the workdir
    write_config(tmp_path, config)
    first = (tmp_path / "config.json").read_text()
    assert compare_config(tmp_path, config) == []  # tuples come back as lists and compare equal
    write_config(tmp_path, config)
    assert (tmp_path / "config.json").read_text() == first

    config.run.steps = 999  # may differ
    config.checkpoint.keep = 9
    assert compare_config(tmp_path, config) == []

    config.rollout.seeds = 12
    with pytest.raises(UsageError, match=r"rollout.seeds: 16 -> 12.*allow_config_change=true"):
        compare_config(tmp_path, config)
    config.run.allow_config_change = True
    assert compare_config(tmp_path, config) == ["rollout.seeds: 16 -> 12"]
    write_config(tmp_path, config)
    config.run.allow_config_change = False
    assert compare_config(tmp_path, config) == []  # the new config is now the run's
    config.run.allow_config_change = True
    config.method.algorithm = "spiral"
    with pytest.raises(UsageError, match=r"another algorithm \(method.algorithm: spade -> spiral\).*another workdir$"):
        compare_config(tmp_path, config)


def test_differences_name_absent_keys():
    assert config_differences({"a": {"b": 1}}, {"a": {"c": 2}}) == ["a.b: 1 -> absent", "a.c: absent -> 2"]
    assert config_differences({"run": {"steps": 1}}, {"run": {"steps": 2}}) == []


@pytest.mark.parametrize(("text", "sentence"), [("{", "not JSON"), ("[1]", "a JSON list, not a config")])
def test_damaged_config_file(tmp_path, text, sentence):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=sentence):
        compare_config(tmp_path, resolve_preset(base.get_config()))


def test_config_file_that_is_a_folder(tmp_path):
    (tmp_path / "config.json").mkdir()
    with pytest.raises(UsageError, match="cannot be read"):
        compare_config(tmp_path, resolve_preset(base.get_config()))


def test_evaluation_takes_another_seed_and_length_but_no_other_policy_or_play(tmp_path):
    config = resolve_preset(base.get_config())
    write_config(tmp_path, config)
    config.run.seed, config.run.steps = 7, 9
    config.learner.optimizer.learning_rate = 1e-3
    config.rollout.seeds = 12
    config.sampler.slots = 3
    assert compare_evaluation(tmp_path, config) == []

    config.sampler.agent.temperature = 0.9
    config.sandbox.limits.call_seconds = 1.0
    config.policy.architecture.num_layers = 2
    with pytest.raises(UsageError) as caught:
        compare_evaluation(tmp_path, config)
    assert str(caught.value) == (
        f"--config is not what the run in {tmp_path} was made with (policy.architecture.num_layers: 8 -> 2; "
        "sampler.agent.temperature: 0.6 -> 0.9; sandbox.limits.call_seconds: 2.0 -> 1.0); give the run's own config, "
        "or pass --config.run.allow_config_change=true to measure it under this one"
    )
    config.run.allow_config_change = True
    assert len(compare_evaluation(tmp_path, config)) == 3


def test_evaluation_of_a_workdir_without_config(tmp_path):
    with pytest.raises(UsageError, match=r"holds no config.json"):
        compare_evaluation(tmp_path, resolve_preset(base.get_config()))


def test_what_matters_to_evaluation_is_in_the_tree():
    keys = flatten(base.get_config().to_dict())
    for name in EVALUATION:
        assert any(key == name or (name.endswith(".") and key.startswith(name)) for key in keys), name
