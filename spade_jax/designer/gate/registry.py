"""The checks in the order in which they run, cheap to dear."""

from __future__ import annotations

from collections.abc import Callable

from spade_jax.designer.gate.contract import check_contract, check_determinism
from spade_jax.designer.gate.session import Outcome, Session
from spade_jax.designer.gate.solvable import check_nontrivial, check_solvable, check_varied

PARSE = "parse"  # static, and always the first

# Name -> check. A check raises `Rejected`, or returns (True, or None where it cannot decide; evidence).
EXECUTED: dict[str, Callable[[Session], Outcome]] = {
    "contract": check_contract,
    "determinism": check_determinism,
    "solvable": check_solvable,
    "nontrivial": check_nontrivial,
    "varied": check_varied,
}
CHECKS = (PARSE, *EXECUTED)
