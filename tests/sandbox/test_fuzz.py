"""A slice of the fuzz run; all of it is `python tests/benchmarks/sandbox_fuzz.py`."""

from __future__ import annotations

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))

import sandbox_fuzz

from spade_jax.envs.bundled import bundled_records


def test_mutants_differ_and_are_often_programs_still():
    source = bundled_records("train", 1, 0)[0].record.source
    mutants = [sandbox_fuzz.mutate(source, random.Random(i)) for i in range(200)]
    assert len(set(mutants)) > 150
    compiled = 0
    for mutant in mutants:
        try:
            compile(mutant, "m", "exec")
            compiled += 1
        except (SyntaxError, ValueError, UnicodeError):
            pass
    assert 60 < compiled < 200


def test_a_slice_of_the_fuzz_run():
    seen = sandbox_fuzz.fuzz(programs=60, actions=600, seed=1)
    assert seen["ok"] > 100 and seen["exception"] > 10 and not seen.get("infrastructure")
