"""The curves of a run, section by section; every function returns HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from spade_jax.designer.gate import CHECKS
from spade_jax.reporting import charts, page
from spade_jax.reporting.charts import HALF, SMALL, WIDE, Colour, Layer, Line, Unit
from spade_jax.reporting.hostile import escape, one_line
from spade_jax.reporting.sources import Run, Series

# Colours of the checks, by check and not by rank, so that two reports can be laid side by side.
_CHECK_COLOURS: dict[str, Colour] = {
    "parse": "c6",
    "contract": "c8",
    "determinism": "c5",
    "solvable": "c3",
    "nontrivial": "c7",
    "varied": "c1",
}
_PHASE_COLOURS: tuple[Colour, ...] = ("c1", "c8", "c2", "c3", "c5", "c7", "c6")
_PROBE = (
    ("all", "all tasks", "c1"),
    ("instance", "unseen instances", "c3"),
    ("range", "harder settings", "c2"),
    ("family", "unseen families", "c8"),
)
# (tag, title, unit) of the learner's small charts.
_LEARNER: tuple[tuple[str, str, Unit], ...] = (
    ("learner/loss", "loss", "number"),
    ("learner/grad_norm", "gradient norm", "number"),
    ("learner/grad_variance", "gradient variance", "number"),
    ("learner/entropy", "entropy, nats", "number"),
    ("learner/clip_share", "clipped tokens", "share"),
    ("learner/kl", "KL to the sampler, nats", "number"),
    ("learner/logp_gap_mean", "mean log-prob gap, nats", "number"),
    ("learner/logp_gap_max", "largest log-prob gap", "number"),
    ("learner/staleness", "staleness, updates", "number"),
    ("learner/padding_share", "padding in the batches", "share"),
)


class Curves:
    """A run's series by tag, and which of them have been drawn.

    Attributes:
      steps: first and last step of anything logged: the x axis of every chart.
    """

    def __init__(self, run: Run):
        self._series = run.series
        self._drawn: set[str] = set()
        every = [steps for steps, _ in run.series.values()]
        self.steps = (min(int(s[0]) for s in every), max(int(s[-1]) for s in every)) if every else (0, 0)

    def get(self, tag: str) -> Series | None:
        self._drawn.add(tag)
        return self._series.get(tag)

    def below(self, prefix: str) -> dict[str, Series]:
        """{last part of the tag: series} of the tags `prefix` + one part."""
        found = {
            tag.removeprefix(prefix): series
            for tag, series in self._series.items()
            if tag.startswith(prefix) and "/" not in tag.removeprefix(prefix)
        }
        self._drawn |= {prefix + name for name in found}
        return found

    def rest(self) -> dict[str, Series]:
        """What no chart has shown so far."""
        return {tag: series for tag, series in self._series.items() if tag not in self._drawn}

    def lines(self, *wanted: tuple[str, str, Colour]) -> list[Line]:
        """A line per (tag, name, colour) that was logged."""
        return [Line(name, *series, colour) for tag, name, colour in wanted if (series := self.get(tag)) is not None]

    def small(
        self, series: Series, title: str, unit: Unit, colour: Colour = "c1", include: Sequence[float] = ()
    ) -> str:
        """A small chart of one series; a share's axis starts at 0."""
        include = [*include, 0.0] if unit == "share" else include
        line = Line(title, *series, colour)
        return charts.line_chart([line], title=title, size=SMALL, unit=unit, steps=self.steps, include=include)


# ---------------------------------------------------------------------------
# Headline
# ---------------------------------------------------------------------------


def ends(series: Series) -> tuple[float, float, int]:
    """(first, last, points in each): means over the first and the last fifth of the finite points."""
    values = series[1][np.isfinite(series[1])]
    if not len(values):
        return math.nan, math.nan, 0
    count = max(1, len(values) // 5)
    return float(values[:count].mean()), float(values[-count:].mean()), count


def tile(name: str, value: str, more: str, spark: str = "") -> str:
    """A number of the headline."""
    return (
        f'<div class="tile"><span class="name">{escape(name)}</span><span class="value">{value}</span>'
        f'<span class="more">{escape(more)}</span>{spark}</div>'
    )


def change_tile(run: Run, name: str, tag: str, colour: Colour, *, exact: bool = False) -> str:
    """A first -> last tile; `exact` takes the two end points as they are."""
    series = run.series.get(tag)
    if series is None or not np.isfinite(series[1]).any():
        return tile(name, "—", "not measured yet")
    first, last, count = ends(series)
    more = "first and last point" if count <= 1 else f"mean of the first and last {count} points"
    if exact:
        values = series[1][np.isfinite(series[1])]
        first, last, more = float(values[0]), float(values[-1]), f"{len(values)} evaluations"
    if np.isfinite(series[1]).sum() == 1:
        value, more = f"{100 * last:.1f} %", "a single point"
    else:
        value = f'<span class="from">{100 * first:.1f} → </span>{100 * last:.1f} %'
    return tile(name, value, more, charts.sparkline(series[1], colour))


def headline(run: Run) -> str:
    """The head of the page: the run's name, what it is, and its numbers."""
    preset = run.config.get("method.preset")
    about = "One language model writes environments and learns to play them."
    if preset is not None:
        about += f" Preset “{one_line(str(preset), 20)}”, seed {one_line(str(run.config.get('run.seed')), 24)}."
    done = len(run.series.get("agent/win_rate", ((), ()))[0])
    planned = run.config.get("run.steps")
    reports = {record.id: record.report for _, record in run.programs}
    written = [report for report in reports.values() if report is not None]
    about_written = f"{sum(report.valid for report in written):,} passed every check"
    if bundled := len(reports) - len(written):
        about_written = f"{bundled:,} bundled ones are played"
    regret = run.series.get("designer/regret")
    if regret is not None and np.isfinite(regret[1]).any():
        _, last, count = ends(regret)
        _, error, _ = ends(run.series["designer/regret_se"]) if "designer/regret_se" in run.series else (0, math.nan, 0)
        more = f"last {count} points" if count > 1 else "last point"
        if math.isfinite(error):
            more += f", standard error {error:.3f}"
        regret_tile = tile("regret", charts.written(last, "difference"), more, charts.sparkline(regret[1], "c5"))
    else:
        regret_tile = tile("regret", "—", "not measured yet")
    tiles = (
        tile("steps", f"{done:,}", f"of {planned:,} planned" if isinstance(planned, int) else "logged so far"),
        tile("environments written", f"{len(written):,}" if run.programs else "—", about_written),
        change_tile(run, "valid programs", "designer/valid_share", "c2"),
        regret_tile,
        change_tile(run, "win rate without hint", "agent/win_rate", "c1"),
        change_tile(run, "held-out probe", "eval/probe/all", "c1", exact=True),
    )
    name = one_line(run.workdir.resolve().name, 120)
    return f'<h1>SPADE run {name}</h1><p class="lead">{about}</p><div class="tiles">{"".join(tiles)}</div>'


# ---------------------------------------------------------------------------
# The method
# ---------------------------------------------------------------------------


def regret(curves: Curves) -> str:
    about = (
        "How much a privileged hint helps: mean return with the hint minus mean return without, on the same seeds. "
        "High regret marks environments that can be won but are not yet. The null swaps the arms’ labels at random, "
        "so it must stay near zero."
    )
    series = curves.get("designer/regret")
    if series is None:
        return page.section("regret", "Regret", about, page.empty("No regret has been logged yet."))
    steps, values = series
    lines = []
    note = ""
    error = curves.get("designer/regret_se")
    null = curves.get("designer/regret_null")
    at = dict(zip(*error, strict=True)) if error is not None else {}
    if null is not None:
        lines.append(Line("null", *null, "muted", dashed=True))
        inside = [abs(v) <= 2 * at[s] for s, v in zip(*null, strict=True) if s in at and math.isfinite(v + at[s])]
        if inside:
            note = f"The null lies within two standard errors of zero in {sum(inside)} of {len(inside)} steps. "
    spread = np.array([at.get(step, math.nan) for step in steps]) if at else None
    if spread is not None:
        note += "Band: one standard error over environments."
    lines.append(Line("regret", steps, values, "c5", spread=spread))
    note += _smoothing(len(steps))
    chart = charts.line_chart(
        lines, title="Regret per step", size=WIDE, unit="difference", steps=curves.steps, include=[0], note=note
    )
    return page.section("regret", "Regret", about, page.grid([chart]))


def _smoothing(points: int) -> str:
    width = charts.window(points)
    return f" Bold: running mean of {width} points." if width else ""


def agent(curves: Curves) -> str:
    about = (
        "Share of episodes that met the environment’s goal, in the environments in play. Only episodes without the "
        "hint train. Learnable are the environments with a win rate between 20 and 80 %."
    )
    lines = curves.lines(("agent/win_rate_hinted", "with hint", "c8"), ("agent/win_rate", "without hint", "c1"))
    figures = []
    if lines:
        note = "The environments change at every regeneration and get harder or easier; the probe below does not."
        note += _smoothing(max(len(line.steps) for line in lines))
        figures.append(
            charts.line_chart(
                lines, title="Win rate", size=WIDE, unit="share", steps=curves.steps, include=[0], note=note
            )
        )
    for tag, title, unit in (
        ("agent/return", "mean return without hint", "number"),
        ("agent/turns", "turns per episode", "number"),
        ("agent/void_share", "void episodes", "share"),
        ("designer/learnable_share", "learnable environments", "share"),
    ):
        series = curves.get(tag)
        if series is not None:
            figures.append(curves.small(series, title, unit, "c1"))
    body = page.grid(figures) if figures else page.empty("No episode has been logged yet.")
    return page.section("agent", "The agent", about, body)


def designer(curves: Curves, run: Run) -> str:
    about = (
        "First attempts at a program, by what became of them. The gate runs its checks from cheap to dear and stops at "
        "the first that fails."
    )
    figures = [*_verdicts(curves)]
    lines = curves.lines(("designer/novel_share", "novel", "c5"), ("designer/valid_share", "valid", "c2"))
    if lines:
        figures.append(
            charts.line_chart(
                lines, title="Valid and novel programs", size=HALF, unit="share", steps=curves.steps, include=[0]
            )
        )
    reward = curves.lines(("designer/reward", "reward", "c5"))
    if reward:
        figures.append(
            charts.line_chart(
                reward, title="Designer reward", size=HALF, unit="difference", steps=curves.steps, include=[0]
            )
        )
    skills = _skills(run)
    memory = curves.lines(("memory/size", "in memory", "c4"))
    if memory and (lines or reward):
        figures.append(
            charts.line_chart(
                memory, title="Environments in memory", size=HALF, unit="count", steps=curves.steps, include=[0]
            )
        )
    if skills:
        figures.append(skills)
    body = page.grid(figures) if figures else page.empty("No regeneration has been logged yet.")
    return page.section("designer", "The designer", about, body)


def _verdicts(curves: Curves) -> list[str]:
    """The stack of valid and rejected shares; [] where neither was logged."""
    rejected = curves.below("designer/reject/")
    parts = {"valid": curves.get("designer/valid_share")} | {
        f"fails {name}": rejected[name] for name in sorted(rejected, key=_check_order)
    }
    parts = {name: series for name, series in parts.items() if series is not None}
    if not parts:
        return []
    at = np.unique(np.concatenate([steps for steps, _ in parts.values()]))
    layers = [Layer(name, _aligned(series, at), _verdict_colour(name)) for name, series in parts.items()]
    return [
        charts.stacked_chart(
            layers,
            at,
            title="Validity, and rejections by check",
            size=WIDE,
            unit="share",
            steps=curves.steps,
            note="Share of first attempts, one bar per regeneration.",
        )
    ]


def _check_order(name: str) -> tuple[int, str]:
    return (CHECKS.index(name) if name in CHECKS else len(CHECKS), name)


def _verdict_colour(name: str) -> Colour:
    return "c2" if name == "valid" else _CHECK_COLOURS.get(name.removeprefix("fails "), "muted")


def _aligned(series: Series, at: np.ndarray) -> np.ndarray:
    """The values of `series` at the steps `at`, 0 where it has none."""
    values = np.zeros(len(at))
    values[np.searchsorted(at, series[0])] = np.nan_to_num(series[1], posinf=0.0, neginf=0.0)
    return values


def _skills(run: Run) -> str:
    """A table of programs by the skill they were asked for, as an HTML figure; "" without programs."""
    counts: dict[str, list[int]] = {}
    for _, record in run.programs:
        if record.report is not None:  # a bundled one was asked of nobody
            row = counts.setdefault(record.skill, [0, 0])
            row[0] += 1
            row[1] += record.report.valid
    if not counts:
        return ""
    most = max(written for written, _ in counts.values())
    rows = []
    for i, (skill, (written, valid)) in enumerate(sorted(counts.items())):
        y, width = 8 + i * 30, 250 / most
        rows.append(
            f'<text class="label" x="0" y="{y + 14}">{one_line(skill, 30) or "no skill"}</text>'
            f'<rect class="bar muted pale" x="170" y="{y + 3}" width="{width * written:.1f}" height="14" rx="2"/>'
            f'<rect class="bar c2" x="170" y="{y + 3}" width="{width * valid:.1f}" height="14" rx="2"/>'
            f'<text class="tick" x="{178 + width * written:.1f}" y="{y + 14}">{valid} of {written}</text>'
        )
    title = "Valid programs by skill"
    return (
        f'<figure class="panel half"><h3>{title}</h3><p class="note">All attempts, retries too.</p>'
        f'<svg viewBox="0 0 524 {16 + 30 * len(counts)}" role="img" aria-label="{title}">{"".join(rows)}</svg></figure>'
    )


def probe(curves: Curves) -> str:
    about = (
        "Win rate on bundled environments that nothing is ever trained on, the same instances at every evaluation: "
        "unseen instances of what the warm start has seen, its families at harder settings, and families it has "
        "never seen."
    )
    lines = curves.lines(*((f"eval/probe/{name}", title, colour) for name, title, colour in _PROBE[::-1]))
    if not lines:
        return page.section("probe", "Held-out probe", about, page.empty("No evaluation has been logged yet."))
    chart = charts.line_chart(
        lines, title="Held-out win rate", size=WIDE, unit="share", steps=curves.steps, include=[0]
    )
    suites = [(curves.below(f"eval/{suite}/"), colour) for suite, _, colour in _PROBE[1:]]
    # One y axis for all tasks, so that they can be compared at a glance.
    most = max((np.nanmax(values, initial=0.0) for suite, _ in suites for _, values in suite.values()), default=0.0)
    tasks = [
        curves.small(series, name.replace("_", " "), "share", colour, include=[most])
        for suite, colour in suites
        for name, series in suite.items()
    ]
    body = page.grid([chart])
    if tasks:
        body += '<p class="about spaced">Each task by itself: unseen instances, harder settings, unseen families.</p>'
        body += page.grid(tasks)
    return page.section("probe", "Held-out probe", about, body)


# ---------------------------------------------------------------------------
# The machine
# ---------------------------------------------------------------------------


def learner(curves: Curves) -> str:
    about = (
        "The health of the update. The log-prob gap is between what the sampler recorded and what the learner computes "
        "again for the same tokens; where nothing but rounding differs it stays near zero."
    )
    figures = [
        curves.small(series, title, unit, "c1")
        for tag, title, unit in _LEARNER
        if (series := curves.get(tag)) is not None
    ]
    body = page.grid(figures) if figures else page.empty("No update has been logged yet.")
    return page.section("learner", "The learner", about, body)


def performance(curves: Curves) -> str:
    about = "Where the time goes. Steps that write new environments or evaluate take longer."
    figures = []
    phases = curves.below("perf/seconds/")
    if phases:
        at = np.unique(np.concatenate([steps for steps, _ in phases.values()]))
        by_total = sorted(phases, key=lambda name: -float(np.nansum(phases[name][1])))
        kept = by_total[: len(_PHASE_COLOURS)]
        layers = [
            Layer(name, _aligned(phases[name], at), colour) for name, colour in zip(kept, _PHASE_COLOURS, strict=False)
        ]
        others = by_total[len(kept) :]
        if others:
            layers.append(Layer("others", sum(_aligned(phases[name], at) for name in others), "muted"))
        total = sum(float(layer.values.sum()) for layer in layers)
        figures.append(
            charts.stacked_chart(
                layers,
                at,
                title="Seconds by phase",
                size=WIDE,
                unit="seconds",
                steps=curves.steps,
                note=f"{total / 60:,.1f} minutes in all.",
            )
        )
    for tag, title, name, colour in (
        ("perf/sample_tokens_per_s", "Sampling, tokens per second", "drawn", "c1"),
        ("perf/train_tokens_per_s", "Training, tokens per second", "trained on", "c8"),
    ):
        lines = curves.lines((tag, name, colour))
        if lines:
            figures.append(
                charts.line_chart(lines, title=title, size=HALF, unit="per second", steps=curves.steps, include=[0])
            )
    for tag, title, unit in (
        ("perf/env_steps_per_s", "environment steps per second", "number"),
        ("perf/slot_occupancy", "decoded rows that drew a token", "share"),
        ("perf/mfu", "model flops utilisation", "share"),
        ("perf/compilations", "compilations so far", "count"),
    ):
        series = curves.get(tag)
        if series is not None:
            figures.append(curves.small(series, title, unit, "c1"))
    body = page.grid(figures) if figures else page.empty("No timing has been logged yet.")
    return page.section("performance", "Performance", about, body)


def others(curves: Curves) -> str:
    """What the sections above have not shown; "" where nothing is left."""
    rest = curves.rest()
    if not rest:
        return ""
    figures = [curves.small(series, tag, "number", "c1") for tag, series in rest.items()]
    about = "What the sections above have not shown, under the names that TensorBoard uses."
    return page.section("others", "Further metrics", about, page.grid(figures))


def settings(run: Run) -> str:
    """The resolved config, folded."""
    about = "The resolved config of the run, as config.json in the workdir holds it."
    if not run.config:
        problem = run.problems.get("config", "config.json is empty.")
        return page.section("config", "Config", about, page.warning(problem))
    rows = "".join(
        f"<tr><td><code>{one_line(key, 100)}</code></td><td><code>{one_line(str(value), 300)}</code></td></tr>"
        for key, value in sorted(run.config.items())
    )
    folded = f"<details><summary>{len(run.config)} keys</summary><table>{rows}</table></details>"
    body = f'<div class="settings">{folded}</div>'
    return page.section("config", "Config", about, body)
