"""The trainer with updates that end in the middle of the next rollout, and a line for every step that trains.

    python lagging_worker.py OUT WHEN FLAGS...

Appends a JSON line per step to OUT: by role, the versions of the weights behind every sequence's oldest token; of
two-player games also those of all tokens, by turn. An update ends after the sampler has drawn two more blocks, or,
where it draws none, after a while; and the sampler draws no more than four before it has. WHEN is "-", kill:STEP or
term:STEP: the process sends itself that signal when that step is about to hand its update over. FLAGS are the
trainer's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from spade_jax import structs, train
from spade_jax.learner import step as step_lib
from spade_jax.rollout import games
from spade_jax.sampler import Engine
from spade_jax.session import Session

_LEAST, _MOST = 2, 4  # blocks that are drawn while an update goes on
_PATIENCE = 0.5  # seconds without one, after which it ends all the same
_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM}


class _Watch:
    """What the two threads know of each other."""

    def __init__(self) -> None:
        self.step = 0
        self.blocks = 0  # since the update was handed over
        self.last_block = 0.0
        self.updating = False

    def update_may_end(self) -> bool:
        return self.blocks >= _LEAST or time.monotonic() - self.last_block > _PATIENCE


def observe(out: str, when: str) -> None:
    """Makes the trainer of this process take its time, and tell."""
    watch, turns = _Watch(), []
    kind, _, at = when.partition(":")
    draw, make_update, learn, begin = Engine.step, step_lib.make_update, Session.learn, Session.begin_step
    trajectories = games.trajectories

    def draw_and_wait(self: Engine, *args: Any, **kwargs: Any) -> Any:
        while watch.updating and watch.blocks >= _MOST:
            time.sleep(0.001)
        watch.blocks, watch.last_block = watch.blocks + 1, time.monotonic()
        return draw(self, *args, **kwargs)

    def make_slow(*args: Any, **kwargs: Any) -> Callable[..., Any]:
        update = make_update(*args, **kwargs)

        def slow(*args: Any) -> Any:
            result = update(*args)
            while not watch.update_may_end():
                time.sleep(0.001)
            watch.updating = False
            return result

        return slow

    def begin_and_remember(self: Session, step: int) -> None:
        watch.step = step
        begin(self, step)

    def make_and_tell(episode: structs.Episode, *args: Any, **kwargs: Any) -> Any:
        turns.extend(turn.versions.tolist() for turn in episode.turns)
        return trajectories(episode, *args, **kwargs)

    def learn_and_tell(self: Session, sequences: Sequence[structs.Trajectory], *args: Any) -> None:
        trained = {role: [s.version for s in sequences if s.role == i] for role, i in structs.ROLE_ID.items()}
        with open(out, "a", encoding="utf-8") as file:
            file.write(json.dumps({"step": watch.step, "trained": trained, "turns": turns}) + "\n")
        turns.clear()
        if kind in _SIGNALS and watch.step == int(at):
            os.kill(os.getpid(), _SIGNALS[kind])
        watch.blocks, watch.last_block, watch.updating = 0, time.monotonic(), True
        learn(self, sequences, *args)

    Engine.step, step_lib.make_update, games.trajectories = draw_and_wait, make_slow, make_and_tell
    Session.learn, Session.begin_step = learn_and_tell, begin_and_remember


if __name__ == "__main__":
    observe(*sys.argv[1:3])
    sys.argv[1:3] = []
    train.run()
