"""A sweep as one page: every setting's mean over seeds with its interval, curves over one another, what failed."""

from __future__ import annotations

import dataclasses
import os
import typing
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from spade_jax.reporting import charts, page
from spade_jax.reporting.comparison import mean_over_runs
from spade_jax.reporting.hostile import escape, one_line
from spade_jax.reporting.sections import ends
from spade_jax.reporting.sources import Series
from spade_jax.reporting.write import write_page
from spade_jax.runtime import sweeps
from spade_jax.runtime.metrics import read_scalars

SWEEP_REPORT_FILE = "sweep.html"
_NBSP = "\u00a0"
_SEED = "run.seed"

# (tag, title, unit, whether the last value counts rather than the mean of the last fifth of the steps)
_Measure = tuple[str, str, charts.Unit, bool]
_SPADE: tuple[_Measure, ...] = (
    ("eval/probe/all", "held-out probe", "share", True),
    ("agent/win_rate", "win rate without hint", "share", False),
    ("designer/regret", "regret", "difference", False),
    ("designer/valid_share", "valid programs", "share", False),
    ("designer/learnable_share", "learnable environments", "share", False),
    ("learner/entropy", "entropy, nats", "number", False),
    ("learner/staleness", "staleness, updates", "number", False),
)
_SPIRAL: tuple[_Measure, ...] = (
    ("eval/kuhn_poker/exploitability", "exploitability of Kuhn poker, antes", "number", True),
    ("eval/tictactoe/optimal", "best moves in tic-tac-toe", "share", True),
    ("learner/grad_variance", "variance of the gradient", "number", False),
    ("learner/entropy", "entropy, nats", "number", False),
    ("learner/staleness", "staleness, updates", "number", False),
)
_SPIRAL_GAME: tuple[_Measure, ...] = (
    ("eval/{}/random/win", "{}: wins against random", "share", True),
    ("selfplay/{}/response_tokens", "{}: tokens of a response", "number", False),
)

# A rare update's is thousands of times the others', which would then be one line at the bottom of the chart.
_BY_POWERS = frozenset({"learner/grad_variance"})

# Student's t: 97.5 % quantile for 1, 2, ... degrees of freedom; the normal distribution's beyond.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T975 += (2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
_Z975 = 1.960


@dataclasses.dataclass(frozen=True)
class Setting:
    """Runs that differ in nothing but their seed.

    Attributes:
      name: what tells it from the others.
      runs: its runs, failed ones too.
      series: {tag: (steps, values)} of each run that did not fail and has logged something.
    """

    name: str
    runs: list[sweeps.SweepRun]
    series: list[dict[str, Series]]

    def of(self, tag: str) -> list[Series]:
        """The tag's series in every run that has it."""
        return [one[tag] for one in self.series if tag in one]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half-width of its 95 % t interval over the finite values; the latter NaN for fewer than two."""
    finite = np.asarray(values, np.float64)
    finite = finite[np.isfinite(finite)]
    if not len(finite):
        return float("nan"), float("nan")
    if len(finite) == 1:
        return float(finite[0]), float("nan")
    quantile = _T975[len(finite) - 2] if len(finite) - 2 < len(_T975) else _Z975
    return float(finite.mean()), float(quantile * finite.std(ddof=1) / np.sqrt(len(finite)))


def write_sweep_report(root: str | os.PathLike[str], out: str | os.PathLike[str]) -> Path:
    """Writes the page, whole or not at all, and returns its path; runs may still be going on.

    Raises:
      UsageError: `root` is not a sweep's folder, or `out` cannot be written.
    """
    root = Path(root)
    runs = sweeps.read_sweep(root)
    outcomes = [sweeps.outcome(root, run) for run in runs]
    settings = _settings(root, runs, outcomes)
    measures = _measures(settings)
    sections = (
        ("settings", "Settings", _table(settings, measures)),
        ("curves", "Curves", _curves(settings, measures)),
        ("runs", "Runs", _runs(runs, outcomes)),
    )
    name = root.resolve().name
    text = page.document(
        f"Sweep {name}",
        _headline(name, settings, outcomes),
        [(anchor, title) for anchor, title, _ in sections],
        [html for _, _, html in sections],
        where="the sweep’s folder",
    )
    out = Path(out)
    write_page(out, text)
    return out


def _settings(root: Path, runs: Sequence[sweeps.SweepRun], outcomes: Sequence[sweeps.Outcome]) -> list[Setting]:
    """The runs by their settings, in the order of the sweep."""
    found: dict[str, Setting] = {}
    for run, outcome in zip(runs, outcomes, strict=True):
        key = repr(sorted((key, value) for key, value in run.settings.items() if key != _SEED))
        if key not in found:
            parts = [f"{key.rpartition('.')[2]}={run.settings[key]}" for key in run.varied if key != _SEED]
            found[key] = Setting(", ".join(parts) or "as configured", [], [])
        found[key].runs.append(run)
        if outcome.status != "failed" and (series := read_scalars(root / run.name)):
            found[key].series.append(series)
    return list(found.values())


def _measures(settings: Sequence[Setting]) -> tuple[_Measure, ...]:
    """What the runs are compared by: of self-play in games, what any of them has logged."""
    logged = {tag for setting in settings for one in setting.series for tag in one}
    games = sorted(tag.split("/")[1] for tag in logged if tag.startswith("selfplay/") and tag.endswith("/moves"))
    if not games:
        return _SPADE
    by_game = [(tag.format(game), title.format(game), *rest) for game in games for tag, title, *rest in _SPIRAL_GAME]
    return tuple(measure for measure in (*_SPIRAL, *by_game) if measure[0] in logged)


def _headline(name: str, settings: Sequence[Setting], outcomes: Sequence[sweeps.Outcome]) -> str:
    counts = {status: sum(o.status == status for o in outcomes) for status in typing.get_args(sweeps.Status)}
    shown = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    about = f"{len(outcomes)} runs of {len(settings)} settings: {shown}."
    return f'<h1>Sweep {one_line(name, 120)}</h1><p class="lead">{escape(about)}</p>'


def _table(settings: Sequence[Setting], measures: Sequence[_Measure]) -> str:
    about = (
        "Mean over seeds ± half of its 95 % t interval. Evaluations are the last one of a run; everything else is "
        "first averaged over the last fifth of a run’s steps. Failed runs are left out, so that with some of them "
        "missing a mean flatters its setting. With one seed there is no interval, and with two it is wide."
    )
    head = "".join(f"<th>{escape(title)}</th>" for _, title, _, _ in measures)
    rows = []
    for setting in settings:
        cells = []
        for tag, _, unit, last in measures:
            mean, half = interval([float(s[1][-1]) if last else ends(s)[1] for s in setting.of(tag)])
            shown = "—" if np.isnan(mean) else charts.written(mean, unit)
            if np.isfinite(half):
                shown += f" ± {charts.written(half, unit).lstrip('+')}"
            cells.append(f"<td>{escape(shown.replace(' ', _NBSP))}</td>")
        seeds = f"{len(setting.series)} of {len(setting.runs)}"
        rows.append(f"<tr><td><code>{one_line(setting.name, 300)}</code></td><td>{seeds}</td>{''.join(cells)}</tr>")
    body = f"<table><tr><th>setting</th><th>seeds</th>{head}</tr>{''.join(rows)}</table>"
    return page.section("settings", "Settings", about, f'<div class="settings spaced">{body}</div>')


def _curves(settings: Sequence[Setting], measures: Sequence[_Measure]) -> str:
    colours = [colour for colour in typing.get_args(charts.Colour) if colour != "muted"]
    about = "Mean over seeds at the steps that all seeds of a setting have; band: standard error over seeds."
    if len(settings) > len(colours):
        about += f" The first {len(colours)} of {len(settings)} settings are drawn; the table has all."
    figures = []
    for tag, title, unit, _ in measures:
        lines = []
        for setting, colour in zip(settings, colours, strict=False):
            if not (runs := setting.of(tag)):
                continue
            if tag in _BY_POWERS:
                runs = [(steps, _powers_of_ten(values)) for steps, values in runs]
            steps, means, spread = mean_over_runs(runs)
            if np.isfinite(means).any():
                band = spread if len(runs) > 1 else None
                lines.append(charts.Line(setting.name, steps, means, colour, band))
        if lines:
            span = min(int(line.steps[0]) for line in lines), max(int(line.steps[-1]) for line in lines)
            include = [0.0] if unit in ("share", "difference") else []
            title += ", powers of ten" * (tag in _BY_POWERS)
            figures.append(
                charts.line_chart(lines, title=title, size=charts.WIDE, unit=unit, steps=span, include=include)
            )
    body = page.grid(figures) if figures else page.empty("No run has logged anything yet.")
    return page.section("curves", "Curves", about, body)


def _powers_of_ten(values: np.ndarray) -> np.ndarray:
    """log10, NaN where there is none."""
    return np.log10(np.where(values > 0, values, np.nan))


def _runs(runs: Sequence[sweeps.SweepRun], outcomes: Sequence[sweeps.Outcome]) -> str:
    about = "Every run, its workdir below the sweep’s folder, and what became of it."
    rows = "".join(
        f"<tr><td><code>{one_line(run.name, 200)}</code></td><td>{escape(outcome.status)}</td>"
        f"<td>{one_line(outcome.reason, 400)}</td></tr>"
        for run, outcome in zip(runs, outcomes, strict=True)
    )
    table = f"<table><tr><th>run</th><th></th><th></th></tr>{rows}</table>"
    return page.section("runs", "Runs", about, f'<div class="settings spaced">{table}</div>')
