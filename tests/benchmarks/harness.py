"""What the benchmarks share: sides that take turns, the machine's own limits, and a record of the figures. No JAX."""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

# The threads of OpenMP (torch, llama.cpp) wait for one another by spinning, for long where every thread has a core of
# its own. On a shared machine that wastes whole time slices, so they give up after some 50 microseconds and sleep.
os.environ.setdefault("GOMP_SPINCOUNT", "10000")

import numpy as np  # noqa: E402 - libraries read the above when they are loaded

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # whoever imports this first finds spade_jax and configs

OURS = "ours"


class Spent(NamedTuple):
    """Seconds: of the clock, and of all this process's threads together on processors."""

    wall: float
    cpu: float

    @classmethod
    def now(cls) -> Spent:
        """By either clock; what matters is the difference of two."""
        return cls(time.perf_counter(), time.process_time())

    def since(self, other: Spent) -> Spent:
        return Spent(self.wall - other.wall, self.cpu - other.cpu)

    def rate(self, count: float) -> Speed:
        return Speed(count / self.wall, count / self.cpu)


class Speed(NamedTuple):
    """Work done per second of the clock and of processor time. The latter hardly depends on what else is running."""

    wall: float
    cpu: float


Turn = Callable[[], float | Speed]  # does a side's work once; its figure, of which more is better


class Record:
    """Figures as they come: printed, and kept for a JSON file.

    Args:
      options: with `json`, the file to write or None, and `rounds`, of each comparison.
      limits: of the machine, beside `machine()`.
    """

    def __init__(self, options: argparse.Namespace, limits: Mapping[str, Any] | None = None):
        self._file, self._rounds = options.json, options.rounds
        self._kept: dict[str, Any] = {"command": sys.argv, "machine": machine() | (limits or {}), "figures": []}
        print(f"machine: {json.dumps(self._kept['machine'])}", flush=True)

    def one(self, name: str, value: float, unit: str) -> None:
        """A figure that is compared with nothing."""
        self._keep({"name": name, "unit": unit, "value": value}, f"{value:,.4g} {unit}")

    def compare(self, name: str, unit: str, sides: Mapping[str, Turn]) -> None:
        """Sides take turns, after one untimed turn each; medians, and medians of the rounds' ratios to the first side.

        Args:
          name, unit: of the figure.
          sides: ratios are the first one over each other one. Where turns return a `Speed`, both of its figures are
            compared.
        """
        for turn in sides.values():
            turn()
        rounds = [{side: turn() for side, turn in sides.items()} for _ in range(self._rounds)]
        if not all(isinstance(figure, Speed) for figure in rounds[0].values()):
            self._keep(*compared(name, unit, rounds))
            return
        for clock, per in (("wall", unit), ("cpu", f"{unit} of processor time")):
            self._keep(*compared(name, per, [{s: getattr(f, clock) for s, f in r.items()} for r in rounds]))

    def _keep(self, figure: dict[str, Any], said: str) -> None:
        print(f"{figure['name']:<52} {said}", flush=True)
        self._kept["figures"].append(figure)
        if self._file:
            pathlib.Path(self._file).write_text(json.dumps(self._kept, indent=2) + "\n", encoding="utf-8")


def compared(name: str, unit: str, rounds: list[dict[str, float]]) -> tuple[dict[str, Any], str]:
    """Medians of the sides and of the rounds' ratios, to keep and to print."""
    first, *others = rounds[0]
    medians = {side: statistics.median(r[side] for r in rounds) for side in rounds[0]}
    ratios = {side: statistics.median(r[first] / r[side] for r in rounds) for side in others}
    said = f"{first} {medians[first]:,.4g} {unit}" + "".join(
        f"; {side} {medians[side]:,.4g}, ratio {ratios[side]:.2f}" for side in others
    )
    return {"name": name, "unit": unit, "median": medians, "ratio": ratios, "rounds": rounds}, said


def arguments(description: str, **extra: dict[str, Any]) -> argparse.Namespace:
    """The options that every benchmark has, and `extra`: option name -> keywords of add_argument."""
    parser = argparse.ArgumentParser(description=description.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each side of a comparison")
    parser.add_argument("--json", help="file that receives the figures")
    for name, keywords in extra.items():
        parser.add_argument(f"--{name}", **keywords)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    """What it is, what it copies (bytes read and written) and multiplies (matrices of 1024 x 1024) a second."""
    big, matrix = np.ones(1 << 26, np.float32), np.ones((1024, 1024), np.float32)
    target = np.empty_like(big)
    return {
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "copy_gb_per_s": round(2 * big.nbytes / best(lambda: np.copyto(target, big)) / 1e9, 1),
        "numpy_gflop_per_s": round(2 * 1024**3 / best(lambda: matrix @ matrix) / 1e9),
        "load": round(os.getloadavg()[0], 1),
    }


def spent(action: Callable[[], object]) -> Spent:
    """What an action takes by either clock."""
    began = Spent.now()
    action()
    return Spent.now().since(began)


def timed(action: Callable[[], object]) -> float:
    """Wall seconds."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def best(action: Callable[[], object], turns: int = 10) -> float:
    """Fewest wall seconds of some turns, after one that is not timed."""
    action()
    return min(timed(action) for _ in range(turns))
