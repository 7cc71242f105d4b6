"""The frame of the page: style, tooltip script, content security policy."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

from spade_jax.reporting.hostile import escape

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f2; --card: #fdfdfc; --ink: #14140f; --soft: #55544e;
  --faint: #8b8a82; --rule: #e4e3dd; --code: #f3f2ee;
  --c1: #2a78d6; --c2: #1baf7a; --c3: #eda100; --c4: #008300;
  --c5: #5b48c0; --c6: #e34948; --c7: #e87ba4; --c8: #eb6834;
  --good: #0b7a50; --good-wash: #dff3ea; --bad: #b3302f; --bad-wash: #fbe4e3; --doubt: #8a5d00; --doubt-wash: #fbefd2;
  --keyword: #5b48c0; --string: #0b7a50; --number: #b3541e; --comment: #8b8a82;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #111110; --card: #1b1b19; --ink: #f2f1ec; --soft: #b9b8b0;
    --faint: #85847c; --rule: #32312d; --code: #141413;
    --c1: #4b94ea; --c2: #1fa878; --c3: #d49316; --c4: #3c9a3c;
    --c5: #9a8ff0; --c6: #e66767; --c7: #dc6a95; --c8: #e07440;
    --good: #5fd0a2; --good-wash: #143528; --bad: #f08f8e;
    --bad-wash: #40201f; --doubt: #e8bd62; --doubt-wash: #382b10;
    --keyword: #a99ff5; --string: #6fcf9f; --number: #e59a6a; --comment: #85847c;
  }
}
.c1 { --c: var(--c1); }
.c2 { --c: var(--c2); }
.c3 { --c: var(--c3); }
.c4 { --c: var(--c4); }
.c5 { --c: var(--c5); }
.c6 { --c: var(--c6); }
.c7 { --c: var(--c7); }
.c8 { --c: var(--c8); }
.muted { --c: var(--faint); }
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, sans-serif;
  -webkit-font-smoothing: antialiased;
}
main, header, footer { max-width: 1160px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 44px; }
h1 { font-size: 30px; line-height: 1.2; letter-spacing: -.02em; margin: 0 0 6px; overflow-wrap: anywhere; }
h2 { font-size: 21px; letter-spacing: -.012em; margin: 0 0 4px; }
h3 { font-size: 14.5px; font-weight: 600; margin: 0; }
p { margin: 0 0 10px; }
a { color: inherit; }
.lead, .about { color: var(--soft); max-width: 78ch; }
nav {
  display: flex; flex-wrap: wrap; gap: 6px 18px; margin: 14px 0 0; padding: 10px 0;
  border-top: 1px solid var(--rule); border-bottom: 1px solid var(--rule); font-size: 13.5px;
}
nav a { color: var(--soft); text-decoration: none; }
nav a:hover { color: var(--ink); text-decoration: underline; }
section { margin-top: 44px; scroll-margin-top: 16px; }
.grid { display: grid; gap: 16px; margin-top: 14px; grid-template-columns: repeat(12, minmax(0, 1fr)); }
.wide { grid-column: span 12; }
.half { grid-column: span 6; }
.small { grid-column: span 3; }
@media (max-width: 900px) {
  .half { grid-column: span 12; }
  .small { grid-column: span 6; }
  .chart.wide { overflow-x: auto; }
  .chart.wide > svg { min-width: 760px; }
}
.empty {
  background: var(--card); border: 1px dashed var(--rule); border-radius: 10px; padding: 16px 18px;
  color: var(--soft); margin: 14px 0 0; overflow-wrap: anywhere;
}
.warning { border-color: var(--doubt); }
.tiles {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); gap: 12px; margin-top: 24px;
}
.tile {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px 12px;
  display: flex; flex-direction: column; min-width: 0;
}
.tile .name { font-size: 12.5px; color: var(--soft); }
.tile .value {
  font-size: 25px; font-weight: 620; letter-spacing: -.02em; line-height: 1.3; white-space: nowrap;
}
.tile .from { font-size: 14px; font-weight: 400; letter-spacing: 0; color: var(--faint); }
.tile .more { font-size: 12px; color: var(--soft); }
.spark { width: 100%; height: 26px; margin-top: auto; padding-top: 2px; overflow: visible; }
.spark .line { stroke-width: 1.6; vector-effect: non-scaling-stroke; }
.panel, .chart {
  margin: 0; background: var(--card); border: 1px solid var(--rule); border-radius: 10px;
  padding: 14px 14px 8px; position: relative; min-width: 0; display: flex; flex-direction: column;
}
.panel svg { display: block; width: 100%; margin-top: 8px; }
.spaced { margin-top: 26px; }
h2.spaced { font-size: 17px; }
.whole { grid-column: 1 / -1; }
.chart.small { padding: 11px 10px 4px; }
.chart.small h3 { font-size: 12.5px; font-weight: 550; }
.chart h3 { display: flex; justify-content: space-between; gap: 8px; overflow-wrap: anywhere; }
.chart .last { font-weight: 600; white-space: nowrap; font-variant-numeric: tabular-nums; }
.chart.small .note { display: none; }
.note { color: var(--soft); font-size: 13px; margin: 2px 0 0; max-width: 125ch; }
.legend {
  list-style: none; display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 6px 0 2px; padding: 0;
  font-size: 12.5px; color: var(--soft);
}
.legend li { display: flex; align-items: center; gap: 6px; }
.swatch { width: 18px; height: 10px; }
.swatch .line { stroke-width: 3; }
.chart > svg { display: block; width: 100%; height: auto; margin-top: auto; touch-action: pan-y; }
.chart > svg:focus { outline: none; }
.chart:has(svg:focus-visible) { outline: 2px solid var(--c1); }
svg text { font-family: inherit; }
.tick, .axis { fill: var(--faint); font-size: 11.5px; font-variant-numeric: tabular-nums; }
.label { fill: var(--ink); font-size: 12.5px; font-variant-numeric: tabular-nums; }
.small .tick { font-size: 10.5px; }
.rule { stroke: var(--rule); }
.base, .notch { stroke: var(--faint); }
.zero { stroke: var(--faint); stroke-width: 1.2; }
.line { fill: none; stroke: var(--c); stroke-width: 2.2; stroke-linejoin: round; stroke-linecap: round; }
.small .line { stroke-width: 1.8; }
.dashed { stroke-dasharray: 5 4; stroke-width: 1.7; }
.raw { fill: none; stroke: var(--c); stroke-width: 1; opacity: .3; }
.band { fill: var(--c); opacity: .16; }
.whisker { fill: none; stroke: var(--c); stroke-width: 1.5; }
.dot { fill: var(--c); stroke: var(--card); stroke-width: 1.3; }
.key { fill: var(--c); }
.bar { fill: var(--c); }
.pale { opacity: .35; }
.gapped { stroke: var(--card); stroke-width: 1.2; }
.cross { stroke: var(--soft); stroke-width: 1; visibility: hidden; pointer-events: none; }
#tip {
  position: fixed; z-index: 9; left: 0; top: 0; pointer-events: none; background: var(--card);
  color: var(--ink); border: 1px solid var(--rule); border-radius: 8px; padding: 7px 10px; font-size: 12.5px;
  line-height: 1.5; box-shadow: 0 4px 18px rgba(0, 0, 0, .16); max-width: 320px;
}
#tip[hidden] { display: none; }
#tip b { display: block; }
#tip div { display: flex; gap: 7px; align-items: center; }
#tip div::before {
  content: ""; width: 9px; height: 9px; border-radius: 3px; background: var(--c); flex: none;
}
#tip i { font-style: normal; color: var(--soft); }
#tip u {
  text-decoration: none; margin-left: auto; padding-left: 14px; font-variant-numeric: tabular-nums;
  white-space: nowrap;
}
.program {
  background: var(--card); border: 1px solid var(--rule); border-radius: 10px; margin-top: 14px;
  overflow: hidden; contain: paint;
}
.program > .head {
  display: flex; flex-wrap: wrap; gap: 4px 12px; align-items: baseline; padding: 14px 18px 0;
}
.program h3 {
  font: 600 16px/1.4 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  overflow-wrap: anywhere;
}
.step { font-size: 12.5px; color: var(--soft); font-variant-numeric: tabular-nums; min-width: 4.6em; }
.tag { font-size: 12px; border-radius: 99px; padding: 1px 9px; background: var(--code); color: var(--soft); }
.tag.passed { background: var(--good-wash); color: var(--good); }
.tag.failed { background: var(--bad-wash); color: var(--bad); }
.tag.open { background: var(--doubt-wash); color: var(--doubt); }
.body {
  display: grid; grid-template-columns: minmax(0, 5fr) minmax(0, 7fr); gap: 6px 28px; padding: 8px 18px 14px;
}
@media (max-width: 900px) {
  .body { grid-template-columns: minmax(0, 1fr); }
}
.body h4, .arm h4 { font-size: 12px; font-weight: 600; color: var(--faint); margin: 10px 0 4px; }
.hint { border-left: 3px solid var(--c3); padding: 1px 0 1px 12px; margin: 0; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate; direction: ltr; }
.facts {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(118px, 1fr)); gap: 8px 16px; margin: 0;
}
.facts dt { font-size: 12px; color: var(--soft); overflow-wrap: anywhere; }
.facts dd { margin: 0; font-weight: 600; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
.verdicts { width: 100%; border-collapse: collapse; font-size: 13px; table-layout: fixed; }
.verdicts td { padding: 4px 10px 4px 0; border-top: 1px solid var(--rule); vertical-align: top; }
.verdicts tr:first-child td { border-top: 0; }
.verdicts .check { width: 132px; white-space: nowrap; overflow: hidden; }
.mark { display: inline-block; width: 1.4em; font-weight: 700; }
.mark.passed { color: var(--good); }
.mark.failed { color: var(--bad); }
.mark.open { color: var(--doubt); }
.verdicts .text { color: var(--soft); }
details { border-top: 1px solid var(--rule); }
details > summary { cursor: pointer; padding: 9px 18px; font-size: 13.5px; color: var(--soft); }
details > summary:hover { color: var(--ink); }
pre {
  margin: 0; padding: 12px 18px 16px; background: var(--code); overflow: auto; max-height: 560px;
  direction: ltr; font: 12.5px/1.55 ui-monospace, "SF Mono", Menlo, Consolas, "Liberation Mono", monospace;
  tab-size: 4;
}
.py-keyword { color: var(--keyword); }
.py-string { color: var(--string); }
.py-number { color: var(--number); }
.py-comment { color: var(--comment); font-style: italic; }
.cut { color: var(--doubt); font-style: italic; }
.arms {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr)); gap: 0 28px;
  padding: 0 18px 16px;
}
.arm { min-width: 0; }
.turns { list-style: none; margin: 0; padding: 0; max-height: 640px; overflow: auto; }
.said {
  margin: 8px 0 0; padding: 7px 12px; border-radius: 10px; font-size: 13px; background: var(--code);
  max-width: 94%;
}
.said.agent { margin-left: auto; background: transparent; border: 1px solid var(--rule); }
.did {
  display: flex; gap: 10px; justify-content: flex-end; align-items: baseline; font-size: 12px;
  color: var(--soft); margin: 3px 4px 0; min-width: 0;
}
.did code { overflow-wrap: anywhere; min-width: 0; }
code { font: 12px ui-monospace, Menlo, Consolas, "Liberation Mono", monospace; }
.settings { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; margin-top: 14px; }
.settings details { border: 0; }
.settings table { border-collapse: collapse; margin: 0 18px 16px; font-size: 13px; }
.settings td { padding: 2px 22px 2px 0; vertical-align: top; overflow-wrap: anywhere; }
.settings td:first-child { color: var(--soft); }
.settings.spaced td:first-child { min-width: 24ch; }
#settings .spaced td + td { overflow-wrap: normal; }  /* figures of a sweep */
.settings th { padding: 12px 22px 2px 0; text-align: left; font-weight: 600; vertical-align: bottom; }
footer { color: var(--faint); font-size: 13px; padding-top: 40px; padding-bottom: 56px; }
@media print {
  .chart, .program, .tile { break-inside: avoid; }
  nav { display: none; }
}
"""

# Values are set as text, never as markup.
_SCRIPT = """
'use strict';
const tip = document.getElementById('tip');
for (const chart of document.querySelectorAll('.chart')) {
  const data = JSON.parse(chart.dataset.hover), svg = chart.querySelector(':scope > svg');
  const cross = svg.querySelector('.cross'), width = svg.viewBox.baseVal.width;
  let place = data.at.length - 1;
  const show = (i) => {
    place = Math.max(0, Math.min(data.at.length - 1, i));
    cross.setAttribute('x1', data.x[place]);
    cross.setAttribute('x2', data.x[place]);
    cross.style.visibility = 'visible';
    tip.replaceChildren();
    tip.appendChild(document.createElement('b')).textContent = 'step ' + data.at[place];
    for (const [name, colour, texts] of data.rows) {
      if (!texts[place]) continue;
      const row = tip.appendChild(document.createElement('div'));
      row.className = colour;
      row.appendChild(document.createElement('i')).textContent = name;
      row.appendChild(document.createElement('u')).textContent = texts[place];
    }
    tip.hidden = false;
    const box = svg.getBoundingClientRect(), x = box.left + data.x[place] * box.width / width;
    const beside = x + 14 + tip.offsetWidth < innerWidth ? x + 14 : x - 14 - tip.offsetWidth;
    const top = Math.max(8, Math.min(innerHeight - tip.offsetHeight - 8, box.top + 10));
    tip.style.transform = 'translate(' + Math.max(8, beside) + 'px,' + top + 'px)';
  };
  const hide = () => { tip.hidden = true; cross.style.visibility = 'hidden'; };
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect(), x = (event.clientX - box.left) * width / box.width;
    let nearest = 0;
    data.x.forEach((at, i) => { if (Math.abs(at - x) < Math.abs(data.x[nearest] - x)) nearest = i; });
    show(nearest);
  });
  svg.addEventListener('pointerleave', hide);
  svg.addEventListener('blur', hide);
  svg.addEventListener('keydown', (event) => {
    const move = {ArrowLeft: -1, ArrowRight: 1}[event.key];
    if (move) { event.preventDefault(); show(place + move); }
    if (event.key === 'Escape') hide();
  });
}
"""


def section(anchor: str, title: str, about: str, body: str) -> str:
    """One section of the page; `about` and `body` are HTML."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2><p class="about">{about}</p>{body}</section>'


def grid(figures: Sequence[str]) -> str:
    return f'<div class="grid">{"".join(figures)}</div>'


def empty(sentence: str) -> str:
    """What stands where there is nothing to show."""
    return f'<p class="empty">{escape(sentence)}</p>'


def warning(sentence: str) -> str:
    """A sentence about an input that is there but cannot be used."""
    return f'<p class="empty warning">{escape(sentence)}</p>'


def document(
    title: str,
    head: str,
    links: Sequence[tuple[str, str]],
    sections: Sequence[str],
    *,
    where: str = "this run’s metrics folder",
) -> str:
    """The whole page.

    Args:
      title: of the window.
      head: HTML above the links.
      links: (anchor, text) of the sections.
      sections: HTML of each.
      where: what TensorBoard shows the same curves of.
    """
    policy = (
        f"default-src 'none'; style-src {_hash(_STYLE)}; script-src {_hash(_SCRIPT)}; "
        "base-uri 'none'; form-action 'none'"
    )
    navigation = "".join(f'<a href="#{anchor}">{escape(text)}</a>' for anchor, text in links)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<header>{head}<nav>{navigation}</nav></header>\n<main>\n"
        + "\n".join(sections)
        + "\n</main>\n<footer>Written by spade_jax.report. The same curves, and more text, are in TensorBoard:"
        f" point it at {where}.</footer>\n"
        f'<div id="tip" role="status" hidden></div>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n'
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
