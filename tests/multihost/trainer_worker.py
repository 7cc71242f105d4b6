"""The trainer under observation: every process writes down what it holds at the end of each step, or dies on the way.

    python trainer_worker.py OUT WHEN FLAGS...

Process i appends a JSON line per step to OUT.i: losses and other scalars, digests of the memory and of the host state,
the baselines. WHEN is "-", or PROCESS:PHASE:STEP, where that process kills itself in that phase (play, update,
checkpoint) of that step; with "stall" for the phase it lives, but while it plays its sandbox does not answer. FLAGS
are the trainer's.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from typing import Any

import jax
import numpy as np

from spade_jax import compose, train
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.sandbox import Pool, Reply
from spade_jax.session import Session

_IN_THE_MIDDLE = 0.2  # seconds from the begin of a phase to the end of the process


def observe(out: str, when: str) -> None:
    """Makes the trainer of this process tell, and die when asked to."""
    process, phase, step = when.split(":") if when != "-" else ("-1", "", "-1")
    make_memory, memories = compose.memory, []
    finish, write, begin, save = Session.finish, Session.log_scalars, Session.phase, Checkpointer.save
    poll, stalled = Pool.poll, threading.Event()
    held: dict[int, dict[str, Any]] = {}  # by step, until its update has ended

    def memory(*args: Any) -> Any:
        memories.append(make_memory(*args))
        return memories[-1]

    def finish_and_hold(self: Session, at: int, log: dict[str, float], host: dict[str, Any]) -> bool:
        held[at] = {
            "memory": [memory.digest() for memory in memories],
            "host": hashlib.sha256(json.dumps(host).encode()).hexdigest(),
            "baselines": np.asarray(self.state.baselines).tolist(),
        }
        return finish(self, at, log, host)

    def write_and_tell(self: Session, at: int, values: dict[str, float]) -> None:
        write(self, at, values)
        if at in held:  # not what is measured behind the last step
            scalars = {tag: value for tag, value in values.items() if not tag.startswith("perf/")}
            with open(f"{out}.{jax.process_index()}", "a", encoding="utf-8") as file:
                file.write(json.dumps({"step": at, "scalars": scalars, **held.pop(at)}) + "\n")

    def doomed(at: int) -> bool:
        return jax.process_index() == int(process) and at == int(step)

    def begin_and_die(self: Session, name: str, at: int) -> Any:
        if name == phase and doomed(at):
            threading.Thread(target=lambda: (time.sleep(_IN_THE_MIDDLE), die()), daemon=True).start()
        (stalled.set if phase == "stall" and name == "play" and doomed(at) else stalled.clear)()
        return begin(self, name, at)

    def save_and_die(self: Checkpointer, at: int, *args: Any) -> None:
        save(self, at, *args)
        if phase == "checkpoint" and doomed(at - 1):
            die()

    def poll_or_wait(self: Pool, timeout: float | None = 0.0) -> list[Reply]:
        if not stalled.is_set():
            return poll(self, timeout)
        time.sleep(3600.0 if timeout is None else timeout)
        return []

    Pool.poll = poll_or_wait
    compose.memory, Session.finish, Session.log_scalars, Session.phase, Checkpointer.save = (
        memory, finish_and_hold, write_and_tell, begin_and_die, save_and_die,
    )  # fmt: skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    observe(*sys.argv[1:3])
    sys.argv[1:3] = []
    train.run()
