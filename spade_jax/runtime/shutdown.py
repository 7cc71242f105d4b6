"""Stopping on request: the step in progress ends, a checkpoint is written, the process exits.

SIGTERM (a scheduler) and the first Ctrl-C ask for that. A second Ctrl-C exits at
once; what is lost is the work since the last checkpoint.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType

EXIT_INTERRUPTED = 130

_NOTICE = {
    signal.SIGINT: b"\nstopping after this step, with a checkpoint; Ctrl-C again exits at once\n",
    signal.SIGTERM: b"\nSIGTERM: stopping after this step, with a checkpoint\n",
}


class Shutdown:
    """Context manager that turns signals into a flag; main thread only.

    Attributes:
      requested: True once a signal has asked the run to stop.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Shutdown:
        for number in _NOTICE:
            self._previous[number] = signal.signal(number, self._handle)
        return self

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
