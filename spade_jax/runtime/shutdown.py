"""Stopping on request: the step in progress ends, a checkpoint is written, the process exits.

SIGTERM (a scheduler) and the first Ctrl-C ask for that. A second Ctrl-C exits at
once; what is lost is the work since the last checkpoint.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130

_NOTICE = {
    signal.SIGINT: b"\nstopping after this step, with a checkpoint; Ctrl-C again exits at once\n",
    signal.SIGTERM: b"\nSIGTERM: stopping after this step, with a checkpoint\n",
}


def exit_on_interrupt() -> None:
    """Ctrl-C ends the process at once from here on: while it has not begun, or when it has done its work.

    A KeyboardInterrupt would end in a traceback through whatever was being imported, or be swallowed there.
    """
    _replace((signal.default_int_handler, _raise), _exit)


def raise_on_interrupt() -> None:
    """The first Ctrl-C is a KeyboardInterrupt again, the second one ends the process at once."""
    _replace((_exit,), _raise)


def _replace(old: tuple[object, ...], new: Callable[[int, FrameType | None], object]) -> None:
    if signal.getsignal(signal.SIGINT) in old:  # who started us may have chosen to ignore it, as nohup does
        signal.signal(signal.SIGINT, new)


def _raise(number: int, frame: FrameType | None) -> None:
    # JAX is called back by the garbage collector, and an exception that is raised there is lost.
    signal.signal(signal.SIGINT, _exit)
    raise KeyboardInterrupt


def _exit(number: int, frame: FrameType | None) -> None:
    os.write(2, b"error: interrupted\n")
    # Not sys.exit, which may be caught like any exception.
    os._exit(EXIT_INTERRUPTED)


class Shutdown:
    """Context manager that turns signals into a flag once `begin` is called; main thread only.

    Entered before whatever has to be closed in peace, a checkpoint that is under way above all: then it is left after.

    Attributes:
      requested: True once a signal has asked the run to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Shutdown:
        return self

    def begin(self) -> None:
        """The run begins: a signal asks it to stop from here on, and ends the process before."""
        for number in _NOTICE:
            self._previous[number] = signal.signal(number, self._handle)

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            # Not sys.exit: that unwinds through native threads and a checkpoint that may be half-way.
            os._exit(EXIT_INTERRUPTED)
        self.requested = True
        # os.write, since print may be interrupted inside itself and then raises.
        os.write(2, _NOTICE[signal.Signals(number)])
