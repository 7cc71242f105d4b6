"""What a pool answers with, and why it may not be what was asked for."""

from __future__ import annotations

import os
import signal
from typing import Any, NamedTuple

from spade_jax.sandbox.limits import Limits

# Kinds of reply. All but the first two are final: the child is gone.
OK = "ok"
EXCEPTION = "exception"  # the program raised, or broke the contract
TIMEOUT = "timeout"  # wall time of a call or an episode, or CPU time of the child
DIED = "died"
PROTOCOL = "protocol"  # bytes that no honest child sends
INFRASTRUCTURE = "infrastructure"  # not the program's doing: never a reward or a penalty


class SandboxError(RuntimeError):
    """The pool itself cannot work on this machine."""


class Reply(NamedTuple):
    """The answer to one ticket.

    Attributes:
      ticket: what `request` returned.
      env: the environment's id.
      ok: whether the program answered within the contract.
      value: reset -> (str, dict); step -> (str, float, bool, bool, dict);
        solution, secrets -> list of str; else, and where not ok, None.
        A reward is finite, not necessarily in [0, 1].
      error: one line, "" if ok.
      kind: "ok", "exception" (the environment may go on), or final: "timeout",
        "died", "protocol", "infrastructure".
      seconds: wall time from when the child could begin until the answer.
    """

    ticket: int
    env: int
    ok: bool
    value: Any
    error: str
    kind: str
    seconds: float


def cause_of_death(code: int, status: int, limits: Limits) -> tuple[str, str]:
    """Kind and error for a child's end, from waitid's si_code and si_status."""
    if code == os.CLD_EXITED:
        return DIED, f"the child exited with status {status}"
    if status == signal.SIGXCPU:
        return TIMEOUT, f"the child used more than {limits.cpu_seconds} s of CPU time"
    try:
        name = signal.Signals(status).name
    except ValueError:
        name = f"signal {status}"
    return DIED, f"the child was ended by {name}, or closed its connection"
