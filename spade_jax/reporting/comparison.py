"""Runs that differ in their seed, as one chart: the mean over runs of some tags, and its standard error."""

from __future__ import annotations

import contextlib
import pathlib
import typing
from collections.abc import Sequence

import numpy as np

from spade_jax.reporting import charts
from spade_jax.reporting.write import write_page
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.metrics import read_scalars


def mean_over_runs(runs: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(int64[N] steps, float64[N] means, float64[N] standard errors) at the steps that all runs have.

    `runs` are (steps, values) each. The standard error is NaN with a single run.
    """
    shared = sorted(set.intersection(*(set(steps.tolist()) for steps, _ in runs)))
    values_RxN = np.array([[dict(zip(s.tolist(), v, strict=True))[at] for at in shared] for s, v in runs], np.float64)
    spread = np.full(len(shared), np.nan)
    if len(runs) > 1:
        spread = values_RxN.std(axis=0, ddof=1) / np.sqrt(len(runs))
    return np.array(shared, np.int64), values_RxN.mean(axis=0), spread


def write_comparison(workdirs: Sequence[str], tags: Sequence[str], out: str) -> str:
    """Draws shares (win rates, valid share) of several runs to an SVG file; returns its path.

    Raises:
      UsageError: more tags than colours, a workdir that lacks one of them, or `out` cannot be written.
    """
    colours = typing.get_args(charts.Colour)
    if len(tags) > len(colours):
        raise UsageError(f"--tags names {len(tags)} tags, but a chart shows at most {len(colours)}; leave some out")
    scalars = {workdir: read_scalars(workdir) for workdir in workdirs}
    lines = []
    for tag, colour in zip(tags, colours, strict=False):
        for workdir, found in scalars.items():
            if tag not in found:
                raise UsageError(f"--tags: {workdir} has no {tag}; it has {', '.join(sorted(found)) or 'no scalars'}")
        steps, means, spread = mean_over_runs([scalars[workdir][tag] for workdir in workdirs])
        if not len(steps):
            raise UsageError(f"--workdirs: the runs have no step of {tag} in common; let them run longer")
        lines.append(charts.Line(tag, steps, means, colour, spread))
    first, last = min(int(line.steps[0]) for line in lines), max(int(line.steps[-1]) for line in lines)
    title = f"mean of {len(workdirs)} runs and its standard error"
    drawing = charts.line_drawing(
        lines, title=title, size=charts.WIDE, unit="share", steps=(first, last), include=(0.0,)
    )
    with contextlib.suppress(OSError):  # then the file cannot be written either, which the next line says
        pathlib.Path(out).absolute().parent.mkdir(parents=True, exist_ok=True)
    write_page(pathlib.Path(out), drawing)
    return out
