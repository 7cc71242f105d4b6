"""Charts as SVG text: lines with bands, stacked bars, sparklines.

Colours are classes `c1`..`c8` (and `muted`), which the page's style sheet gives a value in
either theme. Each chart carries its formatted values as JSON in `data-hover`; the page's
script shows them beside the pointer. Coordinates are in the units of the view box.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from spade_jax.reporting.hostile import escape

Unit = Literal["share", "difference", "number", "count", "seconds", "per second", "nats"]
Colour = Literal["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "muted"]

SMOOTHED_FROM = 48  # points from which on a line that is no count is drawn as its running mean over faint raw values
MARKED_UP_TO = 16  # points up to which each is marked, so that sparse evaluations are seen as such
_LABEL_HEIGHT = 15.0
_LETTER = 7.8  # width of a letter of the labels, in the widest of the fonts
_STEPS_OF_TEN = (1.0, 2.0, 2.5, 5.0, 10.0)
_WHOLE_STEPS_OF_TEN = (1.0, 2.0, 5.0, 10.0)
# Of a drawing outside the report's page, whose style sheet has the same classes.
_STANDALONE_STYLE = """
text { font: 12.5px system-ui, sans-serif; fill: #333 } .title { font-size: 15px; font-weight: 600; fill: #111 }
.tick, .axis { font-size: 11.5px; fill: #666 } .paper { fill: #fff }
.rule, .notch { stroke: #e4e4e4 } .zero, .base { stroke: #999 }
.c1 { --c: #2a78d6 } .c2 { --c: #1baf7a } .c3 { --c: #eda100 } .c4 { --c: #8a4fd0 } .c5 { --c: #d04f6a }
.c6 { --c: #008300 } .c7 { --c: #7a6a55 } .c8 { --c: #0a8f9c } .muted { --c: #888 }
.line { fill: none; stroke: var(--c); stroke-width: 2.2 } .raw { fill: none; stroke: var(--c); opacity: .3 }
.dashed { stroke-dasharray: 5 4 } .dot, .key { fill: var(--c) }
.band, .whisker { fill: var(--c); stroke: none; opacity: .16 } .whisker { stroke: var(--c) }
"""


@dataclasses.dataclass(frozen=True)
class Size:
    """The view box and the number of ticks wanted along each axis."""

    name: str
    width: float
    height: float
    x_ticks: int
    y_ticks: int


WIDE = Size("wide", 1080, 320, 12, 5)
HALF = Size("half", 524, 270, 7, 5)
SMALL = Size("small", 252, 132, 3, 3)


@dataclasses.dataclass(frozen=True)
class Line:
    """One line of a chart.

    Attributes:
      name: as legend, label and tooltip show it.
      steps: int64[N], ascending.
      values: float64[N]; what is not finite leaves a gap.
      colour: its class.
      spread: float64[N] half-height of the band around it, or None.
      dashed: for references.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    colour: Colour
    spread: np.ndarray | None = None
    dashed: bool = False


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer of a stack: values float64[N] at the chart's steps, 0 where it has none."""

    name: str
    values: np.ndarray
    colour: Colour


def line_chart(
    lines: Sequence[Line],
    *,
    title: str,
    size: Size,
    unit: Unit,
    steps: tuple[int, int],
    include: Sequence[float] = (),
    note: str = "",
) -> str:
    """A figure of at least one line with at least one point.

    Args:
      lines: drawn in order, later ones on top.
      title: above the chart.
      size: one of WIDE, HALF, SMALL.
      unit: how values are written.
      steps: first and last step of the x axis, the same for all charts of a page.
      include: values that must be on the y axis.
      note: HTML shown below the title.
    """
    drawn, frame = _plot(lines, size, unit, steps, include)
    above_first = lines[::-1]
    rows = [(line.name, line.colour, _by_step(line, unit)) for line in above_first]
    at = sorted({int(step) for line in lines for step in line.steps})
    legend = _legend([(line.name, line.colour, line.dashed) for line in above_first]) if len(lines) > 1 else ""
    aside = "" if size is not SMALL else f'<span class="last">{written(_last(_drawn(lines[0], unit)), unit)}</span>'
    return _figure(size, title, note, legend, drawn, frame, at, rows, aside)


def line_drawing(
    lines: Sequence[Line], *, title: str, size: Size, unit: Unit, steps: tuple[int, int], include: Sequence[float] = ()
) -> str:
    """The same as an SVG document that stands by itself, with its own colours; arguments as for `line_chart`."""
    drawn, _ = _plot(lines, size, unit, steps, include)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 -28 {size.width:g} {size.height + 28:g}"'
        f' width="{size.width:g}"><style>{_STANDALONE_STYLE}</style>'
        f'<rect class="paper" x="0" y="-28" width="{size.width:g}" height="{size.height + 28:g}"/>'
        f'<text class="title" x="14" y="-8">{escape(title)}</text>{drawn}</svg>\n'
    )


def _plot(
    lines: Sequence[Line], size: Size, unit: Unit, steps: tuple[int, int], include: Sequence[float]
) -> tuple[str, _Frame]:
    """Axes, lines and the labels at their ends, and the frame that they stand in."""
    y = _Axis.of(lines, unit, size.y_ticks, include)
    labels = [_label(line, unit, named=len(lines) > 1) for line in lines] if size is not SMALL else []
    frame = _Frame.of(size, steps, y, right=max((len(label) for label in labels), default=0) * _LETTER)
    drawn = [frame.axes(zero_line=y.low < 0 < y.high)]
    for line in lines:
        drawn.append(_draw_line(line, frame))
    drawn.append(_end_labels(list(zip(lines, labels, strict=False)), frame))
    return "".join(drawn), frame


def stacked_chart(
    layers: Sequence[Layer],
    at: np.ndarray,
    *,
    title: str,
    size: Size,
    unit: Unit,
    steps: tuple[int, int],
    note: str = "",
) -> str:
    """A figure of bars, one per step of int64[N] `at`, stacked in the order of `layers`."""
    tops = np.cumsum([layer.values for layer in layers], axis=0)
    y = _Axis.between(0.0, float(tops[-1].max()), unit, size.y_ticks)
    gap = float(np.diff(at).min()) if len(at) > 1 else max(1.0, (steps[1] - steps[0]) / 4)
    frame = _Frame.of(size, steps, y, right=0.0, pad=gap / 2)
    width = 0.8 * gap * frame.per_step
    drawn = [frame.axes(zero_line=False)]
    for layer, top in zip(layers, tops, strict=True):
        path = "".join(
            f"M{frame.x(step) - width / 2:.1f} {frame.y(high):.1f}"
            f"h{width:.1f}V{frame.y(high - value):.1f}h{-width:.1f}z"
            for step, value, high in zip(at, layer.values, top, strict=True)
            if value > 0
        )
        hairline = " gapped" if width > 5 else ""
        drawn.append(f'<path class="bar {layer.colour}{hairline}" d="{path}"/>')
    rows = [
        (layer.name, layer.colour, {int(s): written(v, unit) for s, v in zip(at, layer.values, strict=True)})
        for layer in reversed(layers)
    ]
    legend = _legend([(layer.name, layer.colour, False) for layer in layers])
    return _figure(size, title, note, legend, "".join(drawn), frame, [int(s) for s in at], rows, "")


def sparkline(values: np.ndarray, colour: Colour) -> str:
    """A line without axes, for a headline number; "" with fewer than two finite values."""
    finite = values[np.isfinite(values)]
    if len(finite) < 2:
        return ""
    low, high = float(finite.min()), float(finite.max())
    span = high - low or 1.0
    points = " ".join(
        f"{1 + 98 * i / (len(finite) - 1):.1f},{25 - 22 * (value - low) / span:.1f}" for i, value in enumerate(finite)
    )
    return (
        '<svg class="spark" viewBox="0 0 100 28" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline class="line {colour}" points="{points}"/></svg>'
    )


def written(value: float, unit: Unit) -> str:
    """A value as text and tooltips show it."""
    if not math.isfinite(value):
        return "none" if math.isnan(value) else "infinite"
    if unit == "share":
        return f"{100 * value:.1f} %"
    if unit == "difference":
        return f"{value:+.3f}".replace("-", "−")
    if unit == "count":
        return f"{value:,.0f}"
    number = _number(value)
    return number + {"number": "", "seconds": " s", "per second": " /s", "nats": " nats"}[unit]


def _number(value: float) -> str:
    """Three significant digits; powers of ten below a thousandth and from ten million on."""
    size = abs(value)
    if size and (size < 1e-3 or size >= 1e7):
        return _powered(value)
    digits = 0 if size >= 100 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}".replace("-", "−")


def _powered(value: float) -> str:
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}".replace("-", "−")


# ---------------------------------------------------------------------------
# Axes
# ---------------------------------------------------------------------------


def nice_step(span: float, count: int, *, whole: bool = False) -> float:
    """The least of 1, 2, 2.5, 5 times a power of ten that cuts `span` > 0 into at most `count` pieces.

    With `whole` it is an integer of at least 1.
    """
    raw = max(span / count, 1.0) if whole else span / count
    power = 10.0 ** math.floor(math.log10(raw))
    steps = _WHOLE_STEPS_OF_TEN if whole else _STEPS_OF_TEN
    return next(power * step for step in steps if power * step >= raw * (1 - 1e-9))


@dataclasses.dataclass(frozen=True)
class _Axis:
    """The y axis: its ends are ticks."""

    low: float
    high: float
    step: float
    unit: Unit

    @classmethod
    def of(cls, lines: Sequence[Line], unit: Unit, count: int, include: Sequence[float]) -> _Axis:
        ends = [np.array(include, np.float64)]
        for line in lines:
            spread = np.zeros_like(line.values) if line.spread is None else np.nan_to_num(line.spread)
            ends += [line.values - spread, line.values + spread]
        values = np.concatenate(ends)
        values = values[np.isfinite(values)]
        if not len(values):
            return cls.between(0.0, 1.0, unit, count)
        return cls.between(float(values.min()), float(values.max()), unit, count)

    @classmethod
    def between(cls, low: float, high: float, unit: Unit, count: int) -> _Axis:
        if high - low < 1e-9 * max(abs(low), abs(high), 1e-6):  # a constant: some room around it
            room = abs(high) / 2 or (1.0 if unit == "count" else 0.1)
            low, high = (low if low == 0 else low - room), high + room
        step = nice_step(high - low, count, whole=unit == "count")
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        return cls(low, min(high, 1.0) if unit == "share" else high, step, unit)

    def ticks(self) -> list[tuple[float, str]]:
        count = int(math.floor((self.high - self.low) / self.step + 1e-6))
        values = [self.low + i * self.step for i in range(count + 1)]
        return [(0.0 if abs(value) < self.step / 1e6 else value, self._text(value)) for value in values]

    def _text(self, value: float) -> str:
        if abs(value) < self.step / 1e6:
            return "0"
        scale = 100.0 if self.unit == "share" else 1.0
        value, step = value * scale, self.step * scale
        if step < 1e-3:
            return _powered(value)
        if step >= 1e4:
            return f"{value / 1e3:,.0f}k"
        # Decimals that tell two ticks apart; 2.5 needs one more than 2.
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        if abs(step * 10**decimals - round(step * 10**decimals)) > 1e-6:
            decimals += 1
        return f"{value:,.{decimals}f}".replace("-", "−") + ("%" if self.unit == "share" else "")


@dataclasses.dataclass(frozen=True)
class _Frame:
    """The plotting area: where a step and a value lie."""

    size: Size
    axis: _Axis
    steps: tuple[int, int]
    first: float
    last: float
    left: float
    right: float
    top: float
    bottom: float

    @classmethod
    def of(cls, size: Size, steps: tuple[int, int], axis: _Axis, *, right: float, pad: float = 0.0) -> _Frame:
        first, last = steps
        if first == last:  # a run of one step stands in the middle
            pad = max(pad, 1.0)
        left = 14 + 0.85 * _LETTER * max(len(text) for _, text in axis.ticks())
        margin = 10.0 if size is SMALL else 16.0
        return cls(
            size, axis, steps, first - pad, last + pad, left, size.width - max(right + 18 if right else 0.0, margin),
            8.0 if size is SMALL else 12.0, size.height - (22.0 if size is SMALL else 40.0),
        )  # fmt: skip

    @property
    def per_step(self) -> float:
        return (self.right - self.left) / (self.last - self.first)

    def x(self, step: float) -> float:
        return self.left + (step - self.first) * self.per_step

    def y(self, value: float) -> float:
        share = (value - self.axis.low) / (self.axis.high - self.axis.low)
        return self.bottom - share * (self.bottom - self.top)

    def axes(self, *, zero_line: bool) -> str:
        parts = []
        for value, text in self.axis.ticks():
            y = self.y(value)
            kind = "zero" if zero_line and value == 0 else "rule"
            parts.append(f'<line class="{kind}" x1="{self.left:.1f}" x2="{self.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text class="tick" x="{self.left - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{text}</text>')
        first, last = self.steps
        step = int(nice_step(max(1, last - first), self.size.x_ticks, whole=True))
        for at in [first] if first == last else range(-(-first // step) * step, last + 1, step):
            x = self.x(at)
            parts.append(
                f'<line class="notch" x1="{x:.1f}" x2="{x:.1f}" y1="{self.bottom:.1f}" y2="{self.bottom + 4:.1f}"/>'
            )
            parts.append(f'<text class="tick" x="{x:.1f}" y="{self.bottom + 17:.1f}" text-anchor="middle">{at}</text>')
        parts.append(
            f'<line class="base" x1="{self.left:.1f}" x2="{self.right:.1f}" y1="{self.bottom:.1f}"'
            f' y2="{self.bottom:.1f}"/>'
        )
        if self.size is not SMALL:
            x, y = (self.left + self.right) / 2, self.bottom + 35
            parts.append(f'<text class="axis" x="{x:.1f}" y="{y:.1f}" text-anchor="middle">step</text>')
        return "".join(parts)


# ---------------------------------------------------------------------------
# Marks
# ---------------------------------------------------------------------------


def running_mean(values: np.ndarray) -> np.ndarray:
    """Centred mean over a twelfth of the points (an odd number), of what is finite in the window."""
    half = len(values) // 24
    return np.array([_mean(values[max(0, i - half) : i + half + 1]) for i in range(len(values))])


def window(points: int) -> int:
    """Points in the window of `running_mean`, or 0 where a line of so many points is drawn as it is."""
    return 2 * (points // 24) + 1 if points >= SMOOTHED_FROM else 0


def _drawn(line: Line, unit: Unit) -> np.ndarray:
    """The values of the heavy line; a count only ever holds whole numbers, so it is drawn as it is."""
    return running_mean(line.values) if window(len(line.values)) and unit != "count" else line.values


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if len(finite) else math.nan


def _last(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite[-1]) if len(finite) else math.nan


def _label(line: Line, unit: Unit, *, named: bool) -> str:
    value = written(_last(_drawn(line, unit)), unit)
    return f"{line.name} {value}" if named else value


def _by_step(line: Line, unit: Unit) -> dict[int, str]:
    texts = {}
    for i, (step, value) in enumerate(zip(line.steps, line.values, strict=True)):
        text = written(float(value), unit)
        if line.spread is not None and math.isfinite(line.spread[i]):
            text += f" ± {line.spread[i]:.3f}"
        texts[int(step)] = text
    return texts


def _stretches(finite: np.ndarray) -> list[slice]:
    """The runs of True in bool[N]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], finite, [False]]).astype(int)))
    return [slice(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]


def _draw_line(line: Line, frame: _Frame) -> str:
    parts = []
    values = _drawn(line, frame.axis.unit)
    smooth = values is not line.values
    if line.spread is not None:
        spread = running_mean(line.spread) if smooth else line.spread
        for part in _stretches(np.isfinite(values) & np.isfinite(spread)):
            upper = _points(line.steps[part], (values + spread)[part], frame)
            lower = _points(line.steps[part][::-1], (values - spread)[part][::-1], frame)
            # One point has no area: its band is a whisker.
            kind = "band" if part.stop - part.start > 1 else "whisker"
            parts.append(f'<polygon class="{kind} {line.colour}" points="{upper} {lower}"/>')
    kind = "line dashed" if line.dashed else "line"
    if smooth:
        parts += [
            f'<polyline class="raw {line.colour}" points="{_points(line.steps[part], line.values[part], frame)}"/>'
            for part in _stretches(np.isfinite(line.values))
        ]
    for part in _stretches(np.isfinite(values)):
        points = _points(line.steps[part], values[part], frame)
        parts.append(f'<polyline class="{kind} {line.colour}" points="{points}"/>')
        if len(line.values) <= MARKED_UP_TO or part.stop - part.start == 1:
            radius = 2.2 if frame.size is SMALL else 3.0
            parts += [
                f'<circle class="dot {line.colour}" cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}" r="{radius}"/>'
                for step, value in zip(line.steps[part], values[part], strict=True)
            ]
    return "".join(parts)


def _points(steps: np.ndarray, values: np.ndarray, frame: _Frame) -> str:
    return " ".join(f"{frame.x(s):.1f},{frame.y(v):.1f}" for s, v in zip(steps, values, strict=True))


def _end_labels(labelled: Sequence[tuple[Line, str]], frame: _Frame) -> str:
    """Name and last value of each line to the right of the plot, pushed apart where they would overlap."""
    unit = frame.axis.unit
    placed = [
        (frame.y(_last(_drawn(line, unit))), line, label)
        for line, label in labelled
        if math.isfinite(_last(line.values))
    ]
    placed.sort(key=lambda entry: entry[0])
    heights = [height for height, _, _ in placed]
    for i in range(1, len(heights)):
        heights[i] = max(heights[i], heights[i - 1] + _LABEL_HEIGHT)
    if heights and heights[-1] > frame.bottom:
        heights[-1] = frame.bottom
        for i in range(len(heights) - 2, -1, -1):
            heights[i] = min(heights[i], heights[i + 1] - _LABEL_HEIGHT)
    return "".join(
        f'<circle class="key {line.colour}" cx="{frame.right + 9:.1f}" cy="{height:.1f}" r="3.5"/>'
        f'<text class="label" x="{frame.right + 17:.1f}" y="{height + 4:.1f}">{escape(label)}</text>'
        for height, (_, line, label) in zip(heights, placed, strict=True)
    )


# ---------------------------------------------------------------------------
# The figure around a drawing
# ---------------------------------------------------------------------------


def _legend(entries: Sequence[tuple[str, Colour, bool]]) -> str:
    keys = "".join(
        f'<li><svg class="swatch" viewBox="0 0 18 10" aria-hidden="true"><line class="line{" dashed" if dashed else ""}'
        f' {colour}" x1="1" x2="17" y1="5" y2="5"/></svg>{escape(name)}</li>'
        for name, colour, dashed in entries
    )
    return f'<ul class="legend">{keys}</ul>'


def _figure(
    size: Size,
    title: str,
    note: str,
    legend: str,
    drawn: str,
    frame: _Frame,
    at: list[int],
    rows: list[tuple[str, Colour, dict[int, str]]],
    aside: str,
) -> str:
    hover = {
        "at": at,
        "x": [round(frame.x(step), 1) for step in at],
        "rows": [[name, colour, [texts.get(step, "") for step in at]] for name, colour, texts in rows],
    }
    note = f'<p class="note">{note}</p>' if note else ""
    return (
        f'<figure class="chart {size.name}" data-hover="{escape(json.dumps(hover, separators=(",", ":")))}">'
        f"<figcaption><h3>{escape(title)}{aside}</h3>{note}{legend}</figcaption>"
        f'<svg viewBox="0 0 {size.width:g} {size.height:g}" role="img" tabindex="0" aria-label="{escape(title)}">'
        f'{drawn}<line class="cross" x1="0" x2="0" y1="{frame.top:.1f}" y2="{frame.bottom:.1f}"/></svg></figure>'
    )
