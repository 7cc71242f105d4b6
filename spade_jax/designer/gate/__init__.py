"""The gate: what a program must show before anyone plays it.

Checks run from cheap to dear and stop at the first failure (`registry.py`). Each leaves
a verdict with evidence.

`check` is a coroutine: it yields `GateCall`s and is sent lists of `Reply`s, so that one
single-threaded driver (`run_gates`) keeps many gates busy on one sandbox pool.
Every episode starts with "construct", as a rollout's does, so no state survives
from one episode to the next. Programs are untrusted: whatever they do, the gate
ends with a report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Sequence

from spade_jax.designer import parse
from spade_jax.designer.gate import novel, sealed
from spade_jax.designer.gate.actions import GARBAGE, listed_actions
from spade_jax.designer.gate.config import GateConfig
from spade_jax.designer.gate.driver import PoolLike, drive
from spade_jax.designer.gate.novel import Signature, signature
from spade_jax.designer.gate.registry import CHECKS, PARSE, REQUIRES, checks_of, executed
from spade_jax.designer.gate.session import GateCall, Outcome, Rejected, ReplyLike, Session, one_line
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.structs import CheckVerdict, GateReport

__all__ = [
    "CHECKS",
    "DEFAULT_CONFIG",
    "GARBAGE",
    "GateCall",
    "GateConfig",
    "Signature",
    "check",
    "check_hint",
    "checks_of",
    "listed_actions",
    "refuse_duplicates",
    "run_checks",
    "run_gates",
    "run_hint_checks",
    "signature",
]

DEFAULT_CONFIG = GateConfig(checks=CHECKS)

Gate = Generator[GateCall, list[ReplyLike], GateReport]


def check(
    source: str | None,
    config: GateConfig = DEFAULT_CONFIG,
    known: Sequence[Signature] = (),
    hint: str | None = None,
) -> Gate:
    """Checks one program.

    Args:
      source: the program, None where the response held none.
      config: sizes of the checks.
      known: signatures of the programs that it must differ from.
      hint: its hint where there is one already; see also `check_hint`.
    """
    try:
        if source is None:
            raise parse.ProgramError("no_code", "the response holds no fenced program")
        program = parse.parse_program(source, config.kind)
    except parse.ProgramError as error:
        return GateReport((CheckVerdict(PARSE, False, one_line(error)),), error.failure, False)
    verdicts = [CheckVerdict(PARSE, True, f"class {program.class_name}")]
    session = Session(program, config, known, hint)
    for name, run in executed(config.kind).items():
        if name in config.checks or REQUIRES.get(name) in config.checks:
            verdict, failure = yield from _judge(name, run, session)
            verdicts.append(verdict)
            if failure:
                return GateReport(tuple(verdicts), failure, False)
    solvable = program.has_solution and "solvable" in config.checks
    return GateReport(tuple(verdicts), None, solvable, session.behaviour)


def check_hint(
    source: str, hint: str, config: GateConfig = DEFAULT_CONFIG
) -> Generator[GateCall, list[ReplyLike], tuple[CheckVerdict, str | None]]:
    """Checks the hint of a program that has passed; returns (verdict, failure class or None)."""
    session = Session(parse.parse_program(source, config.kind), config, hint=hint)
    return (yield from _judge("sealed", sealed.check_hint, session))


def run_gates(
    pool: PoolLike,
    sources: Sequence[str | None],
    config: GateConfig = DEFAULT_CONFIG,
    known: Sequence[Signature] = (),
    hints: Sequence[str | None] | None = None,
) -> list[GateReport]:
    """Runs one gate per source and returns their reports in order; the pool must be otherwise idle.

    Of programs that duplicate each other only the first passes `novel`.
    """
    return refuse_duplicates(sources, run_checks(pool, sources, config, known, hints), config)


def run_checks(
    pool: PoolLike,
    sources: Sequence[str | None],
    config: GateConfig,
    known: Sequence[Signature] = (),
    hints: Sequence[str | None] | None = None,
) -> list[GateReport]:
    """`run_gates` of programs that are not compared with each other."""
    hints = hints or [None] * len(sources)
    gates = [check(source, config, known, hint) for source, hint in zip(sources, hints, strict=True)]
    return drive(pool, gates, sources, config.kind)


def refuse_duplicates(
    sources: Sequence[str | None], reports: Sequence[GateReport], config: GateConfig
) -> list[GateReport]:
    """The reports; of programs that passed and duplicate each other only the first still passes `novel`."""
    reports = list(reports)
    if "novel" not in config.checks:
        return reports
    accepted: list[Signature] = []
    for index, report in enumerate(reports):
        if not report.valid:
            continue
        own = novel.signature(sources[index], report.behaviour)
        if match := novel.duplicate(own, accepted, config.novel_tiers, config.novel_jaccard):
            last = dataclasses.replace(report.verdicts[-1], passed=False, evidence=one_line(match))
            reports[index] = GateReport((*report.verdicts[:-1], last), "duplicate", False)
        else:
            accepted.append(own)
    return reports


def run_hint_checks(
    pool: PoolLike, sources: Sequence[str], hints: Sequence[str], config: GateConfig = DEFAULT_CONFIG
) -> list[tuple[CheckVerdict, str | None]]:
    """`check_hint` of many programs, in order; passes all where the config leaves `sealed` out."""
    if "sealed" not in config.checks:
        return [(CheckVerdict("sealed", None, "not checked"), None)] * len(sources)
    gates = [check_hint(s, h, config) for s, h in zip(sources, hints, strict=True)]
    return drive(pool, gates, sources, config.kind)


def _judge(
    name: str, run: Callable[[Session], Outcome], session: Session
) -> Generator[GateCall, list[ReplyLike], tuple[CheckVerdict, str | None]]:
    """Runs one check; (its verdict, the failure class or None)."""
    before, failure = session.seconds, None
    try:
        passed, evidence = yield from run(session)
    except Rejected as error:
        failure = error.failure
        passed, evidence = None if failure == INFRASTRUCTURE else False, str(error)
    return CheckVerdict(name, passed, one_line(evidence), session.seconds - before), failure
