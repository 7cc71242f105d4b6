"""The command for people, as a process."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from spade_jax.envs import bundled
from spade_jax.envs.families import base

ROOT = pathlib.Path(__file__).parents[1]
ZOO = ROOT / "tests" / "hostile" / "reward"
SOUND = (ZOO / "sound" / "dataclass_state.py").read_bytes()


def check(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "spade_jax.check_env", *map(str, arguments)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


def test_a_sound_program_and_its_hint():
    run = check(ZOO / "sound" / "dataclass_state.py", "--hint=Halve the range each time.")
    assert run.returncode == 0, run.stderr
    assert [line.split()[:2] for line in run.stdout.splitlines()[:3]] == [
        ["pass", "parse"],
        ["pass", "contract"],
        ["pass", "determinism"],
    ]
    assert run.stdout.rstrip().endswith("dataclass_state.py': sound")


def test_a_tool_program_is_judged_as_one(tmp_path):
    (drawn,) = bundled.bundled_records(base.TRAIN, 1, seed=0, kind="tool")
    path = tmp_path / "bank.py"
    path.write_text(drawn.record.source)
    run = check(path, "--kind=tool", f"--hint={drawn.record.hint}")
    assert run.returncode == 0, run.stdout
    assert "pass  criteria" in run.stdout and "pass  reference" in run.stdout
    run = check(path)  # a game may not import the base class
    assert run.returncode == 1 and "import from toolkit" in run.stdout


def test_an_unknown_kind_is_a_mistake_in_the_call():
    run = check(ZOO / "sound" / "dataclass_state.py", "--kind=toy")
    assert run.returncode == 2 and "game" in run.stderr and "tool" in run.stderr


def test_json_of_an_unsound_one():
    run = check(ZOO / "password_in_sight.py", "--json")
    assert run.returncode == 1, run.stderr
    report = json.loads(run.stdout)
    assert (report["sound"], report["failure"]) == (False, "leak")
    assert report["verdicts"][-1]["name"] == "sealed"
    assert "shows the solution" in report["verdicts"][-1]["evidence"]
    assert report["verdicts"][-1]["seconds"] > 0


def test_a_hint_that_tells_is_unsound():
    run = check(ZOO / "hint_hex.py", "--hint=0x1141, 0x1f74 and 0x18f7 open it.")
    assert run.returncode == 1
    assert "unsound (leak)" in run.stdout


def test_without_solution_it_says_so():
    run = check(ZOO / "sound" / "no_solution.py")
    assert run.returncode == 0, run.stderr
    assert "unverified" in run.stdout


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"\xef\xbb\xbf" + SOUND, 0, "sound"),  # a byte-order mark
        (SOUND.replace(b"\n", b"\r\n"), 0, "sound"),
        (SOUND.replace(b"Contact.", "Cont\u00e1ct \u202e\U0001f600.".encode()), 0, "sound"),
        (b"", 1, "no_code"),
        (b"x = 1\x00", 1, "unparsable"),
        (b"class A:\n  def reset(self): return '\\ud800', {}\n  def step(self, a): pass\n", 1, "unsound (contract)"),
        (b"#" * 70_000, 1, "unparsable"),
        (b"#" * 300_000, 2, "300000 bytes"),
        ("caf\u00e9".encode("latin-1"), 2, "not UTF-8 at byte 3"),
    ],
)
def test_odd_files(tmp_path, content, code, said):
    path = tmp_path / "\u00f6dd \u202e.py"
    path.write_bytes(content)
    run = check(path)
    assert run.returncode == code, run.stdout + run.stderr
    assert said in run.stdout + run.stderr
    assert "Traceback" not in run.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "FILE.py is missing"),
        (["/no/such/door.py"], "error: '/no/such/door.py' is not a file"),
        ([ROOT], "is not a file"),
        ([__file__, "second.py"], "unexpected argument 'second.py'"),
        ([__file__, "--hints=x"], "hints"),
        ([__file__, "--hint="], "--hint= is empty"),
    ],
)
def test_misuse_gets_one_sentence(arguments, said):
    run = check(*arguments)
    assert run.returncode == 2
    (line,) = run.stderr.strip().splitlines()
    assert line.startswith("error: ") and said in line
