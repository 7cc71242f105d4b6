from __future__ import annotations

import os
import subprocess
import sys

import pytest

from spade_jax.runtime.files import replacing

_KILLED = """
import os, signal, sys
from spade_jax.runtime.files import replacing
with replacing(sys.argv[1]) as partial:
    partial.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_all_or_nothing(tmp_path):
    path = tmp_path / "a.json"
    with replacing(path) as partial:
        partial.write_text("1")
        assert not path.exists()
    with pytest.raises(KeyError), replacing(path) as partial:
        partial.write_text("2")
        raise KeyError
    assert path.read_text() == "1" and _names(tmp_path) == ["a.json"]


def test_what_a_killed_writer_left_goes_with_the_next_write_of_that_file(tmp_path):
    for name in ("a.json", "b.json"):
        subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path / name)], check=False)
    assert len(_names(tmp_path)) == 2 and not (tmp_path / "a.json").exists()
    (tmp_path / f".a.json.another.machine.{2**22 + 1}.partial").write_text("")  # whose processes cannot be seen
    (tmp_path / f".a.json.{os.uname().nodename}.{os.getppid()}.partial").write_text("")  # of a process that lives
    with replacing(tmp_path / "a.json") as partial:
        partial.write_text("1")
    left = _names(tmp_path)
    assert "a.json" in left and len(left) == 4 and sum(name.startswith(".b.json") for name in left) == 1


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError), replacing(tmp_path / "absent" / "a") as partial:
        partial.write_text("")
