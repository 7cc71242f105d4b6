from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from spade_jax.runtime.compile_cache import default_directory, enable_compile_cache
from spade_jax.runtime.errors import UsageError

_COMPILE = """
import sys, jax, jax.numpy as jnp
from spade_jax.runtime.compile_cache import enable_compile_cache
enable_compile_cache(sys.argv[1])
hits = []
jax.monitoring.register_event_listener(lambda event, **kw: hits.append(event) if event.endswith("cache_hits") else None)
print(float(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.arange(64.0))), len(hits) > 0)
"""


def test_second_process_takes_the_program_from_the_cache(tmp_path):
    command = [sys.executable, "-c", _COMPILE, str(tmp_path / "cache")]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    first, second = (subprocess.run(command, capture_output=True, text=True, env=env).stdout.split() for _ in "ab")
    assert (first[1], second[1]) == ("False", "True")
    assert first[0] == second[0]
    assert any((tmp_path / "cache").iterdir())


@pytest.mark.parametrize("part", [0.0, 0.5])
def test_an_entry_that_was_cut_off_is_written_anew(part, tmp_path):
    """As by kill -9, or a disk that was full for a while; JAX itself would complain of it for ever."""

    def run():
        return subprocess.run(
            [sys.executable, "-c", _COMPILE, str(tmp_path)], capture_output=True, text=True, check=True,
            env=os.environ | {"JAX_PLATFORMS": "cpu"},
        )  # fmt: skip

    run()
    whole = {path: path.read_bytes() for path in tmp_path.glob("*-cache")}
    for path, entry in whole.items():
        path.write_bytes(entry[: int(len(entry) * part)])
    again = run()
    assert again.stderr == "" and whole.keys() == set(tmp_path.glob("*-cache"))
    third = run()
    assert third.stdout.split()[1] == "True" and third.stderr == ""


def test_default_is_under_xdg(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_directory().parent == tmp_path / "spade_jax"
    assert default_directory() == default_directory()
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")  # to be ignored, says the XDG specification
    assert default_directory().is_relative_to(Path.home() / ".cache")


def test_off_and_unwritable(monkeypatch, tmp_path):
    assert enable_compile_cache("off") is None
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="compile_cache.dir=.*file cannot be written to"):
        enable_compile_cache(str(tmp_path / "file"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert enable_compile_cache("auto") is None


def test_a_user_without_a_home(monkeypatch):
    def nowhere():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    assert enable_compile_cache("auto") is None
    with pytest.raises(UsageError, match="cannot be written to"):
        enable_compile_cache("~nobody-of-this-name/cache")
