"""Programs and transcripts as Markdown for TensorBoard; all of it untrusted, so shown as code."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.runtime.metrics import code_block
from spade_jax.structs import HINTED, EnvironmentRecord, Episode

_MAX_CHARS = 8000


def program(record: EnvironmentRecord) -> str:
    """A program with its verdicts and hint."""
    verdicts = record.report.verdicts if record.report else ()
    lines = [f"{verdict.name}: {_passed(verdict.passed)}: {verdict.evidence}" for verdict in verdicts]
    parts = [code_block(record.source[:_MAX_CHARS], "python"), code_block("\n".join(lines))]
    if record.hint:
        parts.append(code_block(f"hint: {record.hint[:_MAX_CHARS]}"))
    return "\n\n".join(parts)


def transcript(episode: Episode, hint: str) -> str:
    """One episode, turn by turn."""
    lines = [f"{episode.arm}, seed {episode.seed}: {episode.status}, return {episode.episode_return:.2f}"]
    if episode.arm == HINTED:
        lines.append(f"hint: {hint}")
    for turn in episode.turns:
        lines += [f"environment: {turn.observation}", f"agent: {turn.response}  [reward {turn.reward:.2f}]"]
    return code_block("\n".join(lines)[:_MAX_CHARS])


def match(title: str, said: Sequence[tuple[int, str, str]]) -> str:
    """One match of a two-player game; `said` holds (seat, observation, response) in the order of the moves."""
    lines = [title]
    for seat, observation, response in said:
        lines += [f"seat {seat} sees: {observation}", f"seat {seat}: {response}"]
    return code_block("\n".join(lines)[:_MAX_CHARS])


def _passed(passed: bool | None) -> str:
    return {True: "passed", False: "failed", None: "undecided"}[passed]
