from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from configs import base
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.workdir import WorkdirLock, compare_config, config_differences, write_config

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
