"""Updates that go on behind the rollouts, and rollouts that wait where they would get too far ahead.

A step of a run has two halves: its update, and what the loop has to report of it. The loop hands the update over,
reports, and begins the next rollout, while a thread makes the update. A step is closed when both halves are there:
metrics, checkpoint and new weights are taken from the state behind its own update, before the next one consumes that.
Nothing is thrown away; with nothing allowed to lag, every update is waited for at once.

Several processes make an update together, and exchange values in between; devices can do only one of both at a time, in
the same order in every process. So an update of theirs begins when its step is reported, behind all exchanges of the
step, and is waited for before the next exchange (`hosts.after`): one update at most lags, and the rollout up to there.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

State = TypeVar("State")
Result = TypeVar("Result")
Report = TypeVar("Report")


@dataclasses.dataclass
class _Step(Generic[State, Result, Report]):
    """One that is not closed."""

    update: Callable[[State], tuple[State, Result]]
    future: Future[tuple[State, Result]] | None = None  # None: the update has not begun
    ended: bool = False
    result: Result | None = None
    report: Report | None = None


class Pacer(Generic[State, Result, Report]):
    """Makes updates one after another in a thread of its own. Everything here is called by one thread, the main one.

    A context manager: what is under way when it is left is waited for.

    Args:
      state: what the first update begins with.
      version: of that state: how many updates have made it.
      ahead: updates that may be unfinished when the main thread goes on.
      at_report: an update begins when its step is reported, or when its state is asked for; else as soon as it can.
      close: called as close(state, version, result, report) for every step, in order, before the next update begins.
    """

    def __init__(
        self,
        state: State,
        version: int,
        ahead: int,
        close: Callable[[State, int, Result, Report], None],
        *,
        at_report: bool = False,
    ) -> None:
        self._state: State | None = state  # None while an update has it
        self._version, self._ahead, self._close, self._at_report = version, ahead, close, at_report
        self._open: collections.deque[_Step[State, Result, Report]] = collections.deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="update")

    def update(self, update: Callable[[State], tuple[State, Result]]) -> None:
        """Hands over a step's update, which may consume the state; waits until no more than `ahead` are unfinished."""
        self._open.append(_Step(update))
        self.catch_up(self._ahead)

    def report(self, report: Report) -> None:
        """Says what belongs to the step whose update was handed over last."""
        self._open[-1].report = report
        self.catch_up(self._ahead)

    def poll(self) -> None:
        """Closes the steps whose updates have ended; waits for nothing."""
        self.catch_up(len(self._open))

    def catch_up(self, ahead: int = 0) -> None:
        """Waits until at most `ahead` of the updates that may begin are unfinished; one's error is raised as it is."""
        while self._open:
            step = self._open[0]
            if step.future is None:
                if self._at_report and step.report is None:
                    return
                self._begin(step)
            if not step.ended:
                if len(self._open) <= ahead and not step.future.done():
                    return
                self._state, step.result = step.future.result()
                step.ended = True
                self._version += 1
            if step.report is None:
                return
            self._close(self._state, self._version, step.result, step.report)
            self._open.popleft()

    def _begin(self, step: _Step[State, Result, Report]) -> None:
        step.future, self._state = self._thread.submit(step.update, self._state), None

    @property
    def state(self) -> State:
        """The state behind all updates handed over; waits for them."""
        self.catch_up()
        if self._open and self._open[0].future is None:
            self._begin(self._open[0])
            self.catch_up()
        return self._state

    def __enter__(self) -> Pacer[State, Result, Report]:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._thread.shutdown(cancel_futures=True)
