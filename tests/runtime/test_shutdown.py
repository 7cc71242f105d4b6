from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

from spade_jax.runtime.shutdown import EXIT_INTERRUPTED, Shutdown

_LOOP = """
import time
from spade_jax.runtime.shutdown import Shutdown
with Shutdown() as shutdown:
    shutdown.begin()
    print("ready", flush=True)
    for step in range(STEPS):
        time.sleep(0.05)
        if shutdown.requested:
            print("checkpoint", flush=True)
            break
"""


@pytest.fixture(autouse=True)
def interruptible():
    """A shell that starts the tests in the background has them ignore Ctrl-C, and with them all that they start."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


def _start(steps):
    process = subprocess.Popen(
        [sys.executable, "-c", _LOOP.replace("STEPS", steps)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_sigterm_and_first_interrupt_end_the_step_cleanly():
    for number in (signal.SIGTERM, signal.SIGINT):
        process = _start("1000")
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert (process.returncode, out) == (0, "checkpoint\n")
        assert "stopping after this step" in err


def test_second_interrupt_exits_at_once():
    process = subprocess.Popen(
        [sys.executable, "-c", "import time\nfrom spade_jax.runtime.shutdown import Shutdown\nwith Shutdown() as s:\n"
         "    s.begin()\n    print('ready', flush=True)\n    while True: time.sleep(60)"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline() == "\n" and "Ctrl-C again" in process.stderr.readline()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == EXIT_INTERRUPTED


def test_handlers_are_put_back():
    before = signal.getsignal(signal.SIGTERM)
    with Shutdown() as shutdown:
        assert signal.getsignal(signal.SIGTERM) is before
        shutdown.begin()
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.requested
    assert signal.getsignal(signal.SIGTERM) is before


ROOT = pathlib.Path(__file__).parents[2]
_BINARIES = ("train", "evaluate", "warmstart", "report", "check_env", "export", "plan")


@pytest.mark.parametrize(("number", "code", "said"), [
    (signal.SIGINT, EXIT_INTERRUPTED, "error: interrupted\n"), (signal.SIGTERM, -signal.SIGTERM, "")
])  # fmt: skip
@pytest.mark.parametrize("command", [*(("-m", f"spade_jax.{name}") for name in _BINARIES), ("spade-train",)], ids=str)
def test_a_signal_while_a_binary_is_still_importing_ends_it_quietly(command, number, code, said, tmp_path):
    # All of them import absl, this one never gets done.
    (tmp_path / "absl.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)")
    (tmp_path / "spade-train").write_text("from spade_jax.train import run\nrun()")  # as pip writes it, in short
    process = subprocess.Popen(
        [sys.executable, *command], cwd=tmp_path, env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (code, said)


def test_a_library_leaves_signals_alone_and_so_does_a_binary_where_they_are_ignored():
    look = "import signal, sys\nimport spade_jax\nprint(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)"
    ignoring = "import signal, sys\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nsys.argv = ['-m']\n" + look
    default = look.replace("SIG_IGN", "default_int_handler")
    for code in (default, ignoring):
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True).stdout == b"True\n"


def test_an_interrupt_when_the_work_is_done_ends_the_process_quietly():
    """JAX and Orbax tidy up while the interpreter ends, which takes a moment."""
    code = (
        "import atexit, os, sys, time\nsys.argv = ['-m']\nimport spade_jax\nfrom spade_jax.runtime import app\n"
        "def late():\n    print('late', flush=True)\n    time.sleep(60)\n"
        "atexit.register(late)\napp.run(lambda argv: print('done'), argv=['x'])"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "done\n" and process.stdout.readline() == "late\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (EXIT_INTERRUPTED, "error: interrupted\n")


def test_a_second_interrupt_ends_what_has_lost_the_first():
    """An exception in a callback of the garbage collector, as JAX has one, goes nowhere."""
    code = """
import gc, signal, sys
from spade_jax.runtime import shutdown
shutdown.exit_on_interrupt()
shutdown.raise_on_interrupt()
sys.unraisablehook = lambda lost: print(lost.exc_type.__name__, "lost", flush=True)
gc.callbacks.append(lambda *args: signal.raise_signal(signal.SIGINT))
gc.collect()
print("still here", flush=True)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert process.stdout == "KeyboardInterrupt lost\n"  # it comes as the collection begins; the second, as it ends
    assert (process.returncode, process.stderr) == (EXIT_INTERRUPTED, "error: interrupted\n")
