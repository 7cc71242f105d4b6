"""A slice of the labelled set of tests/benchmarks/gate_labelled.py."""

import pathlib
import sys

sys.path.append(str(pathlib.Path(__file__).parents[1] / "benchmarks"))

import gate_labelled  # noqa: E402 (found by the path above)

from spade_jax.sandbox import Limits, Pool  # noqa: E402


def test_sound_pass_and_unsound_are_refused_for_the_right_reason():
    programs = [p for p in gate_labelled.labelled(sound=8, unsound=20, seed=7) if not p.name.startswith("zoo/")]
    with Pool(Limits(call_seconds=2.0), max_live=48) as pool:
        reports = gate_labelled.judge(pool, programs)
    for program, report in zip(programs, reports, strict=True):
        assert report.failure in (program.refused or (None,)), (program.name, report.verdicts[-1])
    assert {failure for program in programs for failure in program.refused} >= {"leak", "crash", "not_varied"}
