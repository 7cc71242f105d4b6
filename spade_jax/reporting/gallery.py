"""Programs from early to late, with what was thought of them and how they were played."""

from __future__ import annotations

import collections
import math

from spade_jax import structs
from spade_jax.reporting import charts, page
from spade_jax.reporting.charts import Unit
from spade_jax.reporting.hostile import escape, one_line, python, shown
from spade_jax.reporting.sources import Play, Run

VALID_SHOWN = 10
REJECTED_SHOWN = 5

# Characters of each piece: enough to judge it, too few to bury the page.
_PROGRAM, _HINT, _EVIDENCE, _NAME = 8000, 800, 300, 80
_OBSERVATION, _RESPONSE, _ACTION, _REASON = 1200, 1200, 160, 200
_TURNS = 14

_ARMS = ((structs.PLAIN, "Without the hint"), (structs.HINTED, "With the hint"))
_MARKS = {True: ("passed", "✓", "passed"), False: ("failed", "✗", "failed"), None: ("open", "?", "undecided")}
# Statistics with a name and a unit of their own; others are shown as they are called.
_FACTS: dict[str, tuple[str, Unit]] = {
    "regret": ("regret", "difference"),
    "regret_se": ("standard error", "number"),
    "win_rate": ("wins without hint", "share"),
    "win_rate_hinted": ("wins with hint", "share"),
    "return": ("return without hint", "number"),
    "return_hinted": ("return with hint", "number"),
    "pairs": ("seed pairs", "count"),
    "reward": ("designer reward", "difference"),
}

_Written = tuple[int, structs.EnvironmentRecord]


def gallery(run: Run) -> str:
    about = (
        f"The run in {VALID_SHOWN} stretches, and of each the program with kept transcripts whose regret is most "
        "certain (regret minus its standard error). Below them, an example of each common rejection. Programs, hints "
        "and transcripts are the policy’s own words; invisible characters are written out."
    )
    notes = "".join(page.warning(run.problems[key]) for key in ("programs", "transcripts") if key in run.problems)
    if not run.programs:
        nothing = "" if "programs" in run.problems else page.empty("No program has been written yet.")
        return page.section("gallery", "Gallery", about, notes + nothing)
    # Bundled programs are played without a gate.
    played = _once([entry for entry in run.programs if entry[1].report is None or entry[1].report.valid])
    rejected = _once([entry for entry in run.programs if entry[1].report is not None and not entry[1].report.valid])
    parts = [_program(run, *entry) for entry in _early_to_late(run, played)]
    if not parts:
        parts.append(page.empty("No program has passed the gate yet."))
    if rejected:
        parts.append('<h2 class="spaced">Rejected</h2>')
        parts += [_program(run, *entry) for entry in _examples(rejected)]
    return page.section("gallery", "Gallery", about, notes + "".join(parts))


def _once(programs: list[_Written]) -> list[_Written]:
    """The first writing of each program."""
    first: dict[str, _Written] = {}
    for entry in programs:
        first.setdefault(entry[1].id, entry)
    return list(first.values())


def _early_to_late(run: Run, programs: list[_Written]) -> list[_Written]:
    """The best of each of `VALID_SHOWN` equal stretches, in order."""
    count = min(VALID_SHOWN, len(programs))
    edges = [round(i * len(programs) / count) for i in range(count + 1)] if count else []

    def worth(entry: _Written) -> tuple[int, float]:
        record = entry[1]
        statistics = record.statistics
        bound = statistics.get("regret", -math.inf) - statistics.get("regret_se", 0.0)
        return len(run.plays.get(record.id, ())), bound

    return [max(programs[start:stop], key=worth) for start, stop in zip(edges, edges[1:], strict=False)]


def _examples(programs: list[_Written]) -> list[_Written]:
    """The first program of each of the commonest failures, the commonest failure first."""
    counts = collections.Counter(record.report.failure for _, record in programs)
    first: dict[str, _Written] = {}
    for entry in programs:
        first.setdefault(entry[1].report.failure, entry)
    return [first[failure] for failure, _ in counts.most_common(REJECTED_SHOWN)]


def _program(run: Run, step: int, record: structs.EnvironmentRecord) -> str:
    report = record.report
    rejected = report is not None and not report.valid
    chips = []
    if report is None:
        chips.append('<span class="tag">bundled</span>')
    elif report.valid:
        chips.append('<span class="tag passed">passed the gate</span>')
        chips.append(f'<span class="tag">{"solution verified" if report.solvable else "solution not verified"}</span>')
    else:
        chips.append(f'<span class="tag failed">rejected: {one_line(report.failure, 40).replace("_", " ")}</span>')
    chips += [f'<span class="tag">{one_line(text, 40)}</span>' for text in (record.skill, record.kind) if text]
    left = []
    if record.statistics:
        left.append(f"<h4>Statistics</h4>{_facts(record.statistics)}")
    if record.hint:
        left.append(f'<h4>Hint</h4><p class="hint text">{shown(record.hint, _HINT)}</p>')
    elif not rejected:
        left.append('<h4>Hint</h4><p class="hint">This program has no hint.</p>')
    if record.document_id:
        left.append(f"<h4>Grounded on</h4><p><code>{one_line(record.document_id, _NAME)}</code></p>")
    verdicts = ""
    if report is not None:
        verdicts = f'<h4>Gate</h4><table class="verdicts">{"".join(map(_verdict, report.verdicts))}</table>'
    lines = len(record.source.splitlines())
    body = f"<div>{''.join(left)}</div><div>{verdicts}</div>" if left else f'<div class="whole">{verdicts}</div>'
    return (
        f'<article class="program"><div class="head"><span class="step">step {step}</span>'
        f"<h3>{one_line(record.class_name, _NAME) or 'no class'}</h3>{''.join(chips)}</div>"
        f'<div class="body">{body}</div>'
        f"<details><summary>Program, {lines:,} lines</summary><pre>{python(record.source, _PROGRAM)}</pre></details>"
        f"{'' if rejected else _transcripts(run.plays.get(record.id, {}))}</article>"
    )


def _facts(statistics: dict[str, float]) -> str:
    order = [*(name for name in _FACTS if name in statistics), *sorted(statistics.keys() - _FACTS.keys())]
    items = []
    for name in order:
        title, unit = _FACTS.get(name, (name.replace("_", " "), "number"))
        items.append(f"<div><dt>{one_line(title, 40)}</dt><dd>{charts.written(statistics[name], unit)}</dd></div>")
    return f'<dl class="facts">{"".join(items)}</dl>'


def _verdict(verdict: structs.CheckVerdict) -> str:
    kind, mark, meaning = _MARKS[verdict.passed]
    return (
        f'<tr><td class="check"><span class="mark {kind}" title="{meaning}">{mark}</span>'
        f"{one_line(verdict.name, 24)}</td>"
        f'<td class="text">{one_line(verdict.evidence, _EVIDENCE)}</td></tr>'
    )


def _transcripts(plays: dict[str, Play]) -> str:
    if not plays:
        return "<details><summary>No transcript of this program was kept</summary></details>"
    arms = []
    outcomes = []
    for arm, title in _ARMS:
        play = plays.get(arm)
        if play is None:
            arms.append(f'<div class="arm"><h4>{title}</h4><p class="note">No transcript was kept.</p></div>')
            continue
        outcomes.append(f"{title.lower()}: {one_line(play.status, 20)}")
        reason = f", {one_line(play.reason, _REASON)}" if play.reason else ""
        colour = "passed" if play.status == structs.SUCCESS else "open" if play.status == structs.VOID else "failed"
        arms.append(
            f'<div class="arm"><h4>{title} <span class="tag {colour}">{one_line(play.status, 20)}{reason}</span></h4>'
            f'<p class="note">Step {play.step}, seed {play.seed_index}, return {play.episode_return:.2f}</p>'
            f'<ol class="turns">{_turns(play)}</ol></div>'
        )
    return (
        f"<details><summary>Transcripts ({'; '.join(outcomes)})</summary>"
        f'<div class="arms">{"".join(arms)}</div></details>'
    )


def _turns(play: Play) -> str:
    parts = [
        f'<li><p class="said text">{shown(turn.observation, _OBSERVATION)}</p>'
        f'<p class="said agent text">{shown(turn.response, _RESPONSE)}</p>'
        f'<p class="did"><span>action</span><code>{one_line(turn.action, _ACTION) or "none"}</code>'
        f"<span>score {turn.reward:.2f}</span></p></li>"
        for turn in play.turns[:_TURNS]
    ]
    left = len(play.turns) - _TURNS
    if left > 0:
        parts.append(f'<li class="cut">… {escape(left)} more turns</li>')
    return "".join(parts)
