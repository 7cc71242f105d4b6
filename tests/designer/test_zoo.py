"""Attacks on the reward are refused with the right class; sound programs of any style pass."""

from __future__ import annotations

import pytest
import zoo

from spade_jax.designer import gate, reward
from spade_jax.sandbox import Limits, Pool

CASES = zoo.cases()


@pytest.fixture(scope="module")
def reports():
    """{name: report} of all, judged together; memory is empty, so that each stands for itself."""
    config = gate.GateConfig(gate.CHECKS[:-1])
    with Pool(Limits(call_seconds=1.0), max_live=96) as pool:
        judged = gate.run_gates(pool, [c.source for c in CASES], config, hints=[c.hint for c in CASES])
    return {case.name: report for case, report in zip(CASES, judged, strict=True)}


def test_there_are_programs():
    assert sum(bool(case.refused) for case in CASES) >= 30
    assert sum(not case.refused for case in CASES) >= 8
    assert {failure for case in CASES for failure in case.refused} <= set(reward.FAILURE_REWARD)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_verdict(reports, case):
    report = reports[case.name]
    assert report.failure in (case.refused or (None,)), report.verdicts[-1]
