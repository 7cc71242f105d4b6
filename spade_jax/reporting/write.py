"""A workdir in, `report.html` out: the sections in their order, written whole or not at all."""

from __future__ import annotations

import os
import pathlib

from spade_jax.reporting import page, sections, selfplay
from spade_jax.reporting.gallery import gallery
from spade_jax.reporting.sources import read_run
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.files import replacing

REPORT_FILE = "report.html"
_SPADE_LINKS = (
    ("regret", "Regret"),
    ("agent", "Agent"),
    ("designer", "Designer"),
    ("probe", "Held-out probe"),
    ("gallery", "Gallery"),
)
_SPIRAL_LINKS = (("truth", "Truth"), ("play", "Self-play"), ("opponents", "Opponents"))
_LINKS = (
    ("learner", "Learner"),
    ("performance", "Performance"),
    ("others", "Further metrics"),
    ("config", "Config"),
)


def write_report(workdir: str | os.PathLike[str], out: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Writes the page, whole or not at all, and returns its path.

    Args:
      workdir: a run's directory, finished or not.
      out: the page; `workdir/report.html` if None.

    Raises:
      UsageError: `workdir` is not a run's directory, or `out` cannot be written.
    """
    workdir = pathlib.Path(workdir)
    path = workdir / REPORT_FILE if out is None else pathlib.Path(out)
    run = read_run(workdir)
    curves = sections.Curves(run)
    spiral = run.config.get("method.algorithm") == "spiral"
    if spiral:
        games = tuple(map(str, run.config.get("selfplay.games", ())))
        body = [selfplay.truth(curves), selfplay.play(curves, games), selfplay.opponents(curves, run)]
    else:
        body = [
            sections.regret(curves),
            sections.agent(curves),
            sections.designer(curves, run),
            sections.probe(curves),
            gallery(run),
        ]
    body += [
        sections.learner(curves),
        sections.performance(curves),
        sections.others(curves),  # last of the curves: it draws what the others have not
        sections.settings(run),
    ]
    links = (*(_SPIRAL_LINKS if spiral else _SPADE_LINKS), *_LINKS)
    shown = [(link, html) for link, html in zip(links, body, strict=True) if html]
    text = page.document(
        f"{'SPIRAL' if spiral else 'SPADE'} run {workdir.resolve().name}",
        (selfplay if spiral else sections).headline(run),
        [link for link, _ in shown],
        [html for _, html in shown],
    )
    write_page(path, text)
    return path


def write_page(path: pathlib.Path, text: str) -> None:
    """Writes a page whole or not at all; UsageError if it cannot be."""
    try:
        with replacing(path) as partial:
            partial.write_text(text, encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        raise UsageError(
            f"--out={path} cannot be written ({error.strerror}); name a file in a folder that you can write to"
        ) from error
