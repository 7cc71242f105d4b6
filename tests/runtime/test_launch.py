"""The launch scripts' search for a Python, with stand-ins on the PATH; CI itself runs the rest of them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What a stand-in interpreter answers: its version check and its venv check pass or fail, `-m venv` makes a venv
# whose own python can do everything, and `-m` of anything else is recorded.
_FAKE = """#!/bin/bash
case "$*" in
  *version_info*) exit {version} ;;
  *ensurepip*) exit {venv} ;;
  --version) echo "Python {name}" ;;
  "-m venv"*) mkdir -p "${{@: -1}}/bin"; cp "$FAKE_GOOD" "${{@: -1}}/bin/python" ;;
  *) echo "ran $*"; exit "${{FAKE_EXIT:-0}}" ;;
esac
"""


def _fake(folder: Path, name: str, *, version: int = 0, venv: int = 0) -> Path:
    path = folder / name
    path.write_text(_FAKE.format(name=name, version=version, venv=venv))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def machine(tmp_path):
    """A function that runs a launch script where only `tmp_path/bin` and the basic tools exist."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "dirname", "mkdir", "cp", "cat", "env"):
        (tools / tool).symlink_to(shutil.which(tool))
    good = _fake(tmp_path, "good")

    def run(script: str, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(tools / "bash"), str(ROOT / script), *arguments],
            cwd=tmp_path,
            env={"PATH": str(tools), "VENV": str(tmp_path / "venv"), "FAKE_GOOD": str(good)} | env,
            capture_output=True,
            text=True,
            timeout=30,
        )

    run.tools = tools
    return run


def test_no_python_at_all(machine):
    result = machine("launch/test.sh")
    assert result.returncode == 1
    assert result.stderr.startswith("error: no Python 3.11, 3.12 or 3.13 found; install one, or name it: PYTHON=")


def test_too_old_python_and_missing_venv_module(machine):
    _fake(machine.tools, "python3", version=1)
    assert "no Python 3.11" in machine("launch/quickstart.sh").stderr
    _fake(machine.tools, "python3.12", venv=1)
    result = machine("launch/quickstart.sh")
    assert result.returncode == 1
    assert result.stderr == "error: python3.12 has no venv module; install it (Debian: apt install python3.12-venv)\n"


def test_the_first_that_works_is_taken_past_a_dead_shim(machine):
    _fake(machine.tools, "python3.13", version=127)
    _fake(machine.tools, "python3.12", venv=1)
    _fake(machine.tools, "python3.11")
    assert "with Python python3.11" in machine("launch/test.sh").stdout


def test_named_python(machine):
    old = _fake(machine.tools.parent, "old", version=1)
    result = machine("launch/test.sh", PYTHON=str(old))
    assert (result.returncode, result.stderr) == (1, f"error: PYTHON={old} is not Python 3.11, 3.12 or 3.13; name one that is\n")  # fmt: skip # noqa: E501


def test_quickstart_from_any_folder_and_again(machine):
    _fake(machine.tools, "python3.11")
    first = machine("launch/quickstart.sh", "--config.run.seed=1", WORKDIR="/w/quick")
    assert first.returncode == 0, first.stderr
    assert f"--editable {ROOT}\n" in first.stdout
    assert f"ran -m spade_jax.train --config={ROOT}/configs/spade_tiny.py --workdir=/w/quick --config.run.seed=1\n" in (
        first.stdout
    )
    assert "/w/quick/report.html" in first.stdout and "tensorboard --logdir /w\n" in first.stdout
    second = machine("launch/quickstart.sh", WORKDIR="/w/quick")
    assert second.returncode == 0 and "creating" not in second.stdout


def test_tests_pass_options_and_exit_code_through(machine):
    _fake(machine.tools, "python3.11")
    result = machine("launch/test.sh", "-k", "two words")
    assert result.returncode == 0
    assert result.stdout.endswith("ran -m pytest --numprocesses=2 --dist=loadfile -k two words\n")
    assert f"--editable {ROOT}[test]\n" in result.stdout


@pytest.mark.parametrize("code", [1, 5])
def test_ci_fails_when_a_test_fails_or_none_ran(machine, code):
    # The stand-in venv is made beforehand, so that only pytest's exit code is left to pass on.
    venv = machine.tools.parent / "venv" / "bin"
    venv.mkdir(parents=True)
    script = _FAKE.format(name="x", version=0, venv=0).replace(
        'exit "${FAKE_EXIT:-0}"', '[[ "$*" == "-m pytest"* ]] && exit ' + str(code) + " || exit 0"
    )
    (venv / "python").write_text(script)
    (venv / "python").chmod(0o755)
    result = machine(".ci/run")
    assert result.returncode == code
    assert ("no test ran" in result.stderr) == (code == 5)


def test_without_torch_for_cpus_nothing_is_compared(machine):
    result = machine("launch/reference.sh")
    assert result.returncode == 0 and "python3.11 is not there, or has no venv module" in result.stdout
    _fake(machine.tools, "python3.11")
    # As above; the installation of torch fails.
    venv = machine.tools.parent / "reference"
    (venv / "bin").mkdir(parents=True)
    script = _FAKE.format(name="x", version=0, venv=0).replace(
        'exit "${FAKE_EXIT:-0}"', '[[ "$*" == *torch* ]] && exit 1 || exit 0'
    )
    (venv / "bin" / "python").write_text(script)
    (venv / "bin" / "python").chmod(0o755)
    result = machine("launch/reference.sh", REFERENCE_VENV=str(venv))
    assert result.returncode == 0 and "cannot be had here" in result.stdout
    assert "ran -m pytest" not in result.stdout
    result = machine("launch/reference.sh", "-k", "two words", REFERENCE_VENV=str(machine.tools.parent / "new"))
    assert result.stdout.endswith("ran -m pytest tests/reference -k two words\n")


def test_scripts_are_executable():
    for script in [*ROOT.glob("launch/*.sh"), ROOT / ".ci" / "run"]:
        if script.name != "common.sh":
            assert os.access(script, os.X_OK), script
