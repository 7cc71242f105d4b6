from __future__ import annotations

import os
import signal
import subprocess
import sys

from spade_jax.runtime.shutdown import EXIT_INTERRUPTED, Shutdown

_LOOP = """
import time
from spade_jax.runtime.shutdown import Shutdown
with Shutdown() as shutdown:
    print("ready", flush=True)
    for step in range(STEPS):
        time.sleep(0.05)
        if shutdown.requested:
            print("checkpoint", flush=True)
            break
"""


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
        [sys.executable, "-c", "import time\nfrom spade_jax.runtime.shutdown import Shutdown\nwith Shutdown():\n"
         "    print('ready', flush=True)\n    while True: time.sleep(60)"],
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
        os.kill(os.getpid(), signal.SIGTERM)
        assert shutdown.requested
    assert signal.getsignal(signal.SIGTERM) is before
