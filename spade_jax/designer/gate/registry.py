"""The checks in the order in which they run, cheap to dear."""

from __future__ import annotations

from collections.abc import Callable

from spade_jax.designer.gate.contract import check_contract, check_determinism
from spade_jax.designer.gate.novel import check_novel
from spade_jax.designer.gate.responsive import check_responsive
from spade_jax.designer.gate.sealed import check_sealed
from spade_jax.designer.gate.session import Outcome, Session
from spade_jax.designer.gate.solvable import check_nontrivial, check_solvable, check_varied
from spade_jax.designer.gate.tools import check_criteria, check_reference

PARSE = "parse"  # static, and always the first

# Name -> check. A check raises `Rejected`, or returns (True, or None where it cannot decide; evidence).
EXECUTED: dict[str, Callable[[Session], Outcome]] = {
    "contract": check_contract,
    "determinism": check_determinism,
    "solvable": check_solvable,
    "nontrivial": check_nontrivial,
    "responsive": check_responsive,
    "varied": check_varied,
    "sealed": check_sealed,
    "novel": check_novel,
}
CHECKS = (PARSE, *EXECUTED)

# The checks that a tool-use program meets besides, each behind the check that it builds on and run where that is.
_TOOL_CHECKS = {"contract": {"criteria": check_criteria}, "solvable": {"reference": check_reference}}
REQUIRES = {name: after for after, added in _TOOL_CHECKS.items() for name in added}


def executed(kind: str) -> dict[str, Callable[[Session], Outcome]]:
    """The checks that run programs of a kind, in order."""
    if kind != "tool":
        return EXECUTED
    return {
        name: check
        for first, run in EXECUTED.items()
        for name, check in {first: run, **_TOOL_CHECKS.get(first, {})}.items()
    }


def checks_of(kind: str) -> tuple[str, ...]:
    """The names of all checks of a kind, in order."""
    return (PARSE, *executed(kind))
