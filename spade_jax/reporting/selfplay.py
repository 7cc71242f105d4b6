"""The sections of a run of self-play in two-player games; every function returns HTML."""

from __future__ import annotations

from spade_jax.reporting import charts, page
from spade_jax.reporting.charts import HALF, WIDE, Colour
from spade_jax.reporting.hostile import one_line
from spade_jax.reporting.sections import Curves, change_tile, tile
from spade_jax.reporting.sources import Run

_OUTCOMES: tuple[tuple[str, Colour], ...] = (("win", "c2"), ("draw", "c4"), ("loss", "c6"), ("invalid", "c5"))
_SEATS: tuple[Colour, Colour] = ("c1", "c8")


def headline(run: Run) -> str:
    """The head of the page: the run's name, its games, its numbers."""
    games = run.config.get("selfplay.games", ())
    about = (
        f"One language model plays both seats of {one_line(', '.join(map(str, games)), 200)}; opponent in training: "
        f"{one_line(str(run.config.get('selfplay.opponent')), 20)}, "
        f"seed {one_line(str(run.config.get('run.seed')), 24)}."
    )
    steps = len(run.series.get("learner/loss", ((), ()))[0])
    planned = run.config.get("run.steps")
    tiles = [tile("steps", f"{steps:,}", f"of {planned:,} planned" if isinstance(planned, int) else "logged so far")]
    for name, tag in (
        ("Kuhn: wins against random", "eval/kuhn_poker/random/win"),
        ("tic-tac-toe: best moves", "eval/tictactoe/optimal"),
    ):
        if tag in run.series:
            tiles.append(change_tile(run, name, tag, "c1", exact=True))
    name = one_line(run.workdir.resolve().name, 120)
    return f'<h1>SPIRAL run {name}</h1><p class="lead">{about}</p><div class="tiles">{"".join(tiles)}</div>'


def truth(curves: Curves) -> str:
    about = (
        "Where the truth is known. Exploitability is what a best response wins a round against the policy, in antes: "
        "0 in equilibrium, 0.458 for uniform play. Tic-tac-toe: moves that keep the minimax value."
    )
    figures = []
    exploitability = curves.lines(("eval/kuhn_poker/exploitability", "exploitability", "c5"))
    if exploitability:
        figures.append(
            charts.line_chart(
                exploitability, title="Kuhn poker: exploitability", size=WIDE, unit="number", steps=curves.steps,
                include=[0],
            )
        )  # fmt: skip
    for tag, title, unit in (
        ("eval/kuhn_poker/value_seat0", "Kuhn: value of seat 0 against itself", "difference"),
        ("eval/kuhn_poker/unread", "Kuhn: responses without a move", "share"),
        ("eval/tictactoe/optimal", "tic-tac-toe: best moves", "share"),
        ("eval/elo", "Elo", "number"),
    ):
        if (series := curves.get(tag)) is not None:
            figures.append(curves.small(series, title, unit, "c1"))
    body = page.grid(figures) if figures else page.empty("Nothing has been measured yet.")
    return page.section("truth", "Against the truth", about, body)


def play(curves: Curves, games: tuple[str, ...]) -> str:
    about = (
        "Matches of training. Seat 0 moves first. The running baselines of both seats are what advantages are taken "
        "against; a game that favours a seat keeps them apart."
    )
    figures = []
    for game in games:
        lines = curves.lines(
            (f"selfplay/{game}/win_rate_seat0", "seat 0 wins", "c1"),
            (f"selfplay/{game}/draw_rate", "drawn", "c4"),
            (f"selfplay/{game}/invalid_rate", "invalid move", "c6"),
        )
        baselines = curves.lines(
            *((f"baseline/{game}/seat{seat}", f"seat {seat}", colour) for seat, colour in enumerate(_SEATS))
        )
        if lines:
            figures.append(
                charts.line_chart(
                    lines, title=f"{game}: how matches end", size=HALF, unit="share", steps=curves.steps, include=[0, 1]
                )
            )
        if baselines:
            figures.append(
                charts.line_chart(
                    baselines, title=f"{game}: baselines", size=HALF, unit="difference", steps=curves.steps, include=[0]
                )
            )
        for name, title, unit in (
            ("win_rate", "wins against the opponent", "share"),
            ("response_tokens", "tokens of a response", "number"),
            ("moves", "moves of a match", "number"),
        ):
            if (series := curves.get(f"selfplay/{game}/{name}")) is not None:
                figures.append(curves.small(series, f"{game}: {title}", unit, "c1"))
    if (series := curves.get("selfplay/void_share")) is not None:
        figures.append(curves.small(series, "void matches", "share", "c6"))
    body = page.grid(figures) if figures else page.empty("No match has been played yet.")
    return page.section("play", "Self-play", about, body)


def opponents(curves: Curves, run: Run) -> str:
    about = "The same matches at every evaluation, the policy in either seat by turns."
    pairs = sorted(
        {tuple(tag.split("/")[1:3]) for tag in run.series if tag.startswith("eval/") and tag.endswith("/win")}
    )
    figures = []
    for game, opponent in pairs:
        lines = curves.lines(*((f"eval/{game}/{opponent}/{name}", name, colour) for name, colour in _OUTCOMES))
        title = f"{game} against {opponent}"
        figures.append(
            charts.line_chart(lines, title=title, size=HALF, unit="share", steps=curves.steps, include=[0, 1])
        )
    body = page.grid(figures) if figures else page.empty("No evaluation has been logged yet.")
    return page.section("opponents", "Against opponents", about, body)
