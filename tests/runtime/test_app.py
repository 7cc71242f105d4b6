"""Each case is a process of its own, as a user meets it: one line on stderr and an exit code."""

from __future__ import annotations

import errno
import os
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from spade_jax.runtime.app import check_threads, disk_full, memory_full
from spade_jax.runtime.errors import RunError

ROOT = Path(__file__).parents[2]

_BINARY = """
import errno, os, sys
from absl import flags
from ml_collections import config_flags
from spade_jax.runtime import app
from spade_jax.runtime.errors import RunError, UsageError
config_flags.DEFINE_config_file("config", None, "")
flags.DEFINE_string("workdir", None, "")
flags.mark_flags_as_required(["config", "workdir"])
def main(argv):
    how = flags.FLAGS.workdir
    if how == "usage": raise UsageError("a=1 is wrong;\\n use 2")
    if how == "failure": raise RunError("the run failed")
    if how == "full": raise OSError(errno.ENOSPC, "No space left on device", "/x/y")
    if how == "gone": raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/x/y")
    if how == "memory": raise MemoryError
    if how == "bug": raise KeyError("bug")
    if how == "interrupt": raise KeyboardInterrupt
    print(flags.FLAGS.config.run.seed, flags.FLAGS.config.gate.checks, flags.FLAGS.config.method.paired_seeds)
app.run(main)
"""


def _run(tmp_path, *arguments, config="configs/spade_tiny.py"):
    script = tmp_path / "binary.py"
    script.write_text(_BINARY)
    return subprocess.run(
        [sys.executable, str(script), f"--config={config}", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


def _sentence(result, code):
    assert result.returncode == code, result
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.stderr
    return result.stderr[len("error: ") : -1]


def test_overrides_reach_main(tmp_path):
    result = _run(
        tmp_path, "--workdir=x", "--config.run.seed=3", "--config.gate.checks=('parse','contract')",
        "--config.method.paired_seeds=false",
    )  # fmt: skip
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "3 ('parse', 'contract') False\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config.run.sed=1"], "--config.run.sed is not a key of configs/spade_tiny.py; did you mean run.seed?"),
        (["--config.rollot.seeds=1"], "rollot.seeds is not a key of configs/spade_tiny.py; did you mean rollout?"),
        (["--config.run.xyz=1"], "--config.run.xyz is not a key of configs/spade_tiny.py; run has: "),
        (["--config.run.seed=abc"], "--config.run.seed=abc is not of this key's type; give a value of type int"),
        (["--config.method.paired_seeds=perhaps"], "perhaps is not of this key's type; give a value of type bool"),
        (["--config.mesh=3"], "--config.mesh=3 names a section, not a key; set one of: data, expert, fsdp, tensor"),
        (["--wrkdir=x"], "Unknown command line flag 'wrkdir'. Did you mean: workdir ?; --help lists the flags"),
        (["stray"], "unexpected argument 'stray'; settings are given as --config.key=value"),
    ],
)  # fmt: skip
def test_bad_flags(tmp_path, arguments, sentence):
    assert sentence in _sentence(_run(tmp_path, "--workdir=x", *arguments), 2)


def test_bad_config_files(tmp_path):
    assert "unknown variant 'nope'; known: runlocal" in _sentence(
        _run(tmp_path, "--workdir=x", config="configs/spade_tiny.py:nope"), 2
    )
    assert "--config=nope.py is not a readable config file" in _sentence(
        _run(tmp_path, "--workdir=x", config="nope.py"), 2
    )
    broken = tmp_path / "broken.py"
    broken.write_text("x = (\n")
    assert "'(' was never closed (broken.py, line 1)" in _sentence(_run(tmp_path, "--workdir=x", config=broken), 2)


def test_arguments_that_are_not_text(tmp_path):
    assert r"--workdir=r\udcff is not UTF-8; rename what it names" in _sentence(_run(tmp_path, b"--workdir=r\xff"), 2)
    assert _run(tmp_path, "--workdir=é日本 %#?").returncode == 0


def test_memory_that_ran_out_is_told_from_other_errors():
    error = type("JaxRuntimeError", (RuntimeError,), {})
    assert memory_full(MemoryError())
    assert memory_full(error("RESOURCE_EXHAUSTED: Out of memory allocating 4611686018427387904 bytes."))
    assert memory_full(error("RESOURCE_EXHAUSTED: Failed to allocate request for 93GiB"))
    assert not memory_full(error("INTERNAL: out of memory"))
    assert not memory_full(ValueError("RESOURCE_EXHAUSTED: error writing: No space left on device"))


def test_missing_workdir(tmp_path):
    assert "--workdir is missing; give --workdir=..." in _sentence(_run(tmp_path), 2)
    assert "--workdir= is empty; name a path" in _sentence(_run(tmp_path, "--workdir="), 2)  # not the current folder


@pytest.mark.parametrize(
    ("how", "code", "sentence"),
    [
        ("usage", 2, "a=1 is wrong; use 2"),
        ("failure", 1, "the run failed"),
        ("full", 1, "the disk is full while writing /x/y; free some space and run the same command again"),
        ("gone", 1, "/x/y: No such file or directory; mend that and run the same command again"),
        (
            "memory",
            1,
            "memory ran out (MemoryError); lower learner.micro_batch_tokens, sampler.slots or sampler.context, or use "
            "more devices",
        ),
        ("interrupt", 130, "interrupted"),
    ],
)
def test_how_main_ends(tmp_path, how, code, sentence):
    assert _sentence(_run(tmp_path, f"--workdir={how}"), code) == sentence


def test_a_bug_keeps_its_traceback(tmp_path):
    result = _run(tmp_path, "--workdir=bug")
    assert result.returncode == 1
    assert "Traceback" in result.stderr and "KeyError: 'bug'" in result.stderr


def test_a_limit_that_leaves_jax_too_few_threads_is_a_sentence(monkeypatch):
    before = threading.active_count()
    check_threads()
    allowed, start = 5, threading.Thread.start

    def refuse(thread):  # as under ulimit -u, which does not bind root
        nonlocal allowed
        if not allowed:
            raise RuntimeError("can't start new thread")
        allowed -= 1
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RunError, match=r"may start only 5 threads, and JAX needs about \d+; .*ulimit -u"):
        check_threads()
    assert threading.active_count() == before


def test_disk_full_is_seen_through_wrappers():
    wrapped = ValueError("RESOURCE_EXHAUSTED: error writing: No space left on device")
    assert disk_full(wrapped)
    assert disk_full(sqlite3.OperationalError("database or disk is full"))
    try:
        raise RuntimeError("save failed") from OSError(errno.EDQUOT, "quota")
    except RuntimeError as error:
        assert disk_full(error)
    assert not disk_full(OSError(errno.ENOENT, "no"))
