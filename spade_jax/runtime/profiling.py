"""Traces of a few steps, for TensorBoard's profile page (`pip install xprof`)."""

from __future__ import annotations

import os
import re
from types import TracebackType
from typing import Any


def parse_steps(text: str) -> range:
    """The steps that "a:b" names, a to b - 1; none for "".

    Raises:
      ValueError: it is something else.
    """
    if not text:
        return range(0)
    match = re.fullmatch(r"(\d{1,9}):(\d{1,9})", text)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError("give first:last+1, e.g. 10:12 for steps 10 and 11, or '' for none")
    return range(int(match[1]), int(match[2]))


class Profiler:
    """Context manager that traces the steps of a range; a run that ends within it still writes the trace.

    Args:
      steps: as `parse_steps` takes them.
      directory: where TensorBoard looks; the trace goes to `plugins/profile/` below it.
    """

    def __init__(self, steps: str, directory: str | os.PathLike[str]) -> None:
        self._steps, self._directory = parse_steps(steps), os.fspath(directory)
        self._tracing = False
        self._annotation: Any = None

    def step(self, step: int) -> None:
        """Call as each step begins."""
        import jax  # here, so that the config is checked without JAX

        self._end_step()
        if step in self._steps and not self._tracing:
            jax.profiler.start_trace(self._directory)
            self._tracing = True
        elif step not in self._steps:
            self._end_trace()
        if self._tracing:
            # By these TensorBoard tells the steps apart.
            self._annotation = jax.profiler.StepTraceAnnotation("step", step_num=step)
            self._annotation.__enter__()

    def __enter__(self) -> Profiler:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._end_step()
        self._end_trace()

    def _end_step(self) -> None:
        if self._annotation is not None:
            self._annotation.__exit__(None, None, None)
            self._annotation = None

    def _end_trace(self) -> None:
        if self._tracing:
            import jax

            jax.profiler.stop_trace()
            self._tracing = False
