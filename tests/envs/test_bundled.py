"""Draws of programs from the bundled families."""

from __future__ import annotations

import collections
import subprocess
import sys

import pytest

from spade_jax.designer import parse, prompts
from spade_jax.envs import bundled, families
from spade_jax.envs.families import base
from tests.envs import family_checks as checks


def test_a_draw_is_a_function_of_its_arguments():
    once, again = (bundled.bundled_records(base.TRAIN, 30, seed=4) for _ in range(2))
    assert [b.record for b in once] == [b.record for b in again]
    assert [b.record for b in bundled.bundled_records(base.TRAIN, 12, seed=4)] == [b.record for b in once[:12]]
    other = bundled.bundled_records(base.TRAIN, 30, seed=5)
    assert not {b.record.id for b in once} & {b.record.id for b in other}


def test_a_draw_does_not_depend_on_the_hash_seed():
    code = "from spade_jax.envs.bundled import held_out_probe; print([b.record.id for b in held_out_probe(2)])"
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": h, "PYTHONPATH": "."}, capture_output=True, check=True
        ).stdout
        for h in ("0", "1")
    }
    assert len(outputs) == 1


def test_splits_take_their_families_in_turn():
    known = [family.name for family in families.all_families() if not family.held_out]
    every = [family.name for family in families.all_families()]
    train = [b.family.name for b in bundled.bundled_records(base.TRAIN, 2 * len(known), seed=0)]
    probe = [(b.family.name, b.split) for b in bundled.held_out_probe(2)]
    assert train == known * 2
    assert probe == [(name, base.HELD_OUT) for name in every * 2] + [(name, base.TRAIN) for name in known * 2]
    assert len(known) < len(every)


def test_suites_say_how_far_from_the_warm_start_a_program_is():
    families_of = {suite: set() for suite in bundled.SUITES}
    for drawn in bundled.held_out_probe(1):
        families_of[drawn.suite].add(drawn.family.name)
    held_out = {family.name for family in families.all_families() if family.held_out}
    known = {family.name for family in families.all_families()} - held_out
    assert families_of == {bundled.INSTANCE: known, bundled.RANGE: known, bundled.FAMILY: held_out}


def test_a_probe_of_some_skills_is_part_of_the_whole():
    part = bundled.held_out_probe(2, skills=prompts.SKILLS[:2])
    wanted = [b for b in bundled.held_out_probe(2) if b.family.held_out or b.family.skill in prompts.SKILLS[:2]]
    assert [b.record for b in part] == [b.record for b in wanted]
    assert {b.suite for b in part} == set(bundled.SUITES)
    tools = bundled.held_out_probe(1, "tool", skills=("calendar",))
    assert {(b.family.name, b.suite) for b in tools} == {
        ("calendar", bundled.INSTANCE), ("calendar", bundled.RANGE),
        ("library", bundled.FAMILY), ("thermostat", bundled.FAMILY),
    }  # fmt: skip


def test_the_train_families_cover_every_skill():
    counts = collections.Counter(b.record.skill for b in bundled.bundled_records(base.TRAIN, 60, seed=0))
    assert set(counts) == set(prompts.SKILLS)


def test_the_probe_shares_no_program_with_training():
    train = {b.record.id for b in bundled.bundled_records(base.TRAIN, 1000, seed=0)}
    assert not train & {b.record.id for b in bundled.held_out_probe(16)}


def test_records_are_what_a_designer_writes():
    for drawn in bundled.held_out_probe(1):
        program = parse.parse_program(drawn.record.source)
        assert (program.id, program.class_name) == (drawn.record.id, drawn.record.class_name)
        assert drawn.record.hint == drawn.family.hint(drawn.params)
        cls = checks.build(drawn.record.source)
        assert checks.replay(cls, 3, checks.solution_of(cls, 3))[0]


def test_bad_arguments_name_themselves():
    with pytest.raises(ValueError, match="split is 'test'"):
        bundled.bundled_records("test", 1, seed=0)
    with pytest.raises(ValueError, match="3 theme words"):
        bundled.bundled_records(base.TRAIN, 1, seed=0, words=("a", "b", "c"))
    assert bundled.bundled_records(base.TRAIN, 0, seed=0) == []
