"""The gate: what a program must show before anyone plays it.

Checks run from cheap to dear and stop at the first failure (`registry.py`). Each leaves
a verdict with evidence.

`check` is a coroutine: it yields `GateCall`s and is sent `Reply`s, so that one
single-threaded driver (`run_gates`) keeps many gates busy on one sandbox pool.
Every episode starts with "construct", as a rollout's does, so no state survives
from one episode to the next. Programs are untrusted: whatever they do, the gate
ends with a report.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from spade_jax.designer import parse
from spade_jax.designer.gate.actions import GARBAGE, listed_actions
from spade_jax.designer.gate.config import GateConfig
from spade_jax.designer.gate.driver import PoolLike, drive
from spade_jax.designer.gate.registry import CHECKS, PARSE, REQUIRES, checks_of, executed
from spade_jax.designer.gate.session import GateCall, Rejected, ReplyLike, Session, one_line
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.structs import CheckVerdict, GateReport

__all__ = [
    "CHECKS",
    "DEFAULT_CONFIG",
    "GARBAGE",
    "GateCall",
    "GateConfig",
    "check",
    "checks_of",
    "listed_actions",
    "run_gates",
]

DEFAULT_CONFIG = GateConfig(checks=CHECKS)

Gate = Generator[GateCall, ReplyLike, GateReport]


def check(source: str | None, config: GateConfig = DEFAULT_CONFIG) -> Gate:
    """Checks one program; `source` is None where the response held no program."""
    try:
        if source is None:
            raise parse.ProgramError("no_code", "the response holds no fenced program")
        program = parse.parse_program(source, config.kind)
    except parse.ProgramError as error:
        return GateReport((CheckVerdict(PARSE, False, one_line(error)),), error.failure, False)
    verdicts = [CheckVerdict(PARSE, True, f"class {program.class_name}")]
    for name, run in executed(config.kind).items():
        if name not in config.checks and REQUIRES.get(name) not in config.checks:
            continue
        session = Session(program, config)
        try:
            passed, evidence = yield from run(session)
        except Rejected as error:
            passed = None if error.failure == INFRASTRUCTURE else False
            verdicts.append(CheckVerdict(name, passed, one_line(error), session.seconds))
            return GateReport(tuple(verdicts), error.failure, False)
        verdicts.append(CheckVerdict(name, passed, one_line(evidence), session.seconds))
    return GateReport(tuple(verdicts), None, program.has_solution and "solvable" in config.checks)


def run_gates(pool: PoolLike, sources: Sequence[str | None], config: GateConfig = DEFAULT_CONFIG) -> list[GateReport]:
    """Runs one gate per source and returns their reports in order; the pool must be otherwise idle."""
    return drive(pool, [check(source, config) for source in sources], sources, config.kind)
