"""What a person sees while a run goes on: one line per step, and on a terminal the phase at work."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TextIO


class Column(NamedTuple):
    """A part of the line: text with a {} for each (tag, number format)."""

    text: str
    numbers: tuple[tuple[str, str], ...]


SPADE = (
    Column("regret {}±{}", (("designer/regret", "+.3f"), ("designer/regret_se", ".3f"))),
    Column("win {} (hinted {})", (("agent/win_rate", ".2f"), ("agent/win_rate_hinted", ".2f"))),
    Column("valid {}", (("designer/valid_share", ".2f"),)),
    Column("probe {}", (("eval/probe/all", ".2f"),)),
)


def spiral_columns(games: Sequence[str]) -> tuple[Column, ...]:
    """The columns of self-play in some games."""
    columns = [
        Column(
            f"{game}: seat 0 wins {{}}, draws {{}}, invalid {{}}",
            tuple((f"selfplay/{game}/{name}", ".2f") for name in ("win_rate_seat0", "draw_rate", "invalid_rate")),
        )
        for game in games
    ]
    if "kuhn_poker" in games:
        columns.append(Column("exploitability {}", (("eval/kuhn_poker/exploitability", ".3f"),)))
    if "tictactoe" in games:
        columns.append(Column("optimal {}", (("eval/tictactoe/optimal", ".2f"),)))
    return tuple(columns)


class Progress:
    """Prints progress lines.

    Args:
      first_step: the step this process starts at.
      steps: the step the run ends at.
      columns: what the line of a step shows of its metrics.
      stream: where to print; a terminal also shows the phase under way.
    """

    def __init__(self, first_step: int, steps: int, columns: Sequence[Column], stream: TextIO = sys.stdout):
        self._first, self._steps, self._columns, self._stream = first_step, steps, columns, stream
        self._started = time.monotonic()
        self._terminal = stream.isatty()

    @contextlib.contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        """Shows that `name` is at work; erased when it ends."""
        if self._terminal:
            print(f"step {step + 1}/{self._steps}  {name} ...", end="\r", file=self._stream, flush=True)
        try:
            yield
        finally:
            if self._terminal:
                print("\x1b[2K", end="\r", file=self._stream, flush=True)

    def line(self, step: int, log: Mapping[str, float]) -> None:
        """One line for a finished step; what was not measured in it shows as "-"."""
        elapsed = time.monotonic() - self._started
        left = elapsed / (step + 1 - self._first) * (self._steps - step - 1)
        phases = {tag.rpartition("/")[2]: value for tag, value in log.items() if tag.startswith("perf/seconds/")}
        whole = sum(phases.values())
        fields = [
            f"step {step + 1}/{self._steps}",
            *(column.text.format(*(_number(log.get(tag), spec) for tag, spec in column.numbers))
              for column in self._columns),
            f"{_number(log.get('perf/sample_tokens_per_s'), '.0f')} tokens/s",
            " ".join(f"{name} {seconds:.0f}s" for name, seconds in phases.items() if seconds >= 0.05 * whole),
            f"{_duration(left)} left",
        ]
        print("  ".join(fields), file=self._stream, flush=True)


class Cadence:
    """Says when something is due, by steps and by seconds; 0 switches either off."""

    def __init__(self, steps: int, secs: float):
        self._steps, self._secs = steps, secs
        self._last = time.monotonic()

    def due(self, step: int) -> bool:
        """Whether it is due after `step` steps; resets the clock where it is."""
        by_steps = self._steps > 0 and step % self._steps == 0
        by_secs = self._secs > 0 and time.monotonic() - self._last >= self._secs
        if by_steps or by_secs:
            self._last = time.monotonic()
        return by_steps or by_secs


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None or math.isnan(value) else format(value, spec)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes}:{seconds:02d}"
