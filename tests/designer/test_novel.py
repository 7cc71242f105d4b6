"""Tiers of novelty, by programs that differ in known ways."""

import dataclasses
import random

import numpy as np
import pytest

from spade_jax.designer import gate
from spade_jax.designer.gate import novel
from spade_jax.designer.memory import Memory
from spade_jax.envs import families
from spade_jax.structs import EnvironmentRecord

FAMILY = families.by_name("number_search")


def program(draw=0, word="lamp"):
    return FAMILY.source(FAMILY.parameters(random.Random(draw), "train"), ["loop", word, *"abcdef"])


RENAMED = program().replace("LoopSearch", "Other").replace("self.turn", "self.age").replace("command", "said")


def failure(pool, known, source, *tiers):
    config = dataclasses.replace(gate.DEFAULT_CONFIG, novel_tiers=tiers)
    (report,) = gate.run_gates(pool, [source], config, known)
    return report.failure


@pytest.mark.parametrize(
    ("other", "source", "tree", "behaviour"),
    [
        (program(), True, True, True),
        (program() + "\n# a remark\n", False, True, True),
        (RENAMED, False, True, True),
        (RENAMED.replace("class Other:", 'class Other:\n    """A game."""\n'), False, True, True),
        (program(word="reef"), False, False, True),  # the same game under another theme
        (program(draw=3), False, False, False),
    ],
)
def test_each_tier_sees_what_it_should(pool, other, source, tree, behaviour):
    (report,) = gate.run_gates(pool, [program()])
    known = [novel.signature(program(), report.behaviour)]
    for tier, same in (("source", source), ("tree", tree), ("behaviour", behaviour)):
        assert failure(pool, known, other, tier) == ("duplicate" if same else None), tier
    assert failure(pool, known, other) is None
    assert failure(pool, [], other, *novel.TIERS) is None


def test_minhash_estimates_the_jaccard_index():
    """300 and 300 runs of which 200 are shared: 200 / 400."""
    words = [f"w{i}" for i in range(700)]
    one, other = " ".join(words[:304]), " ".join(words[100:404])
    estimate = np.mean(novel._minhash(one) == novel._minhash(other))
    assert estimate == pytest.approx(0.5, abs=4 * np.sqrt(0.25 / novel.PERMUTATIONS))
    assert novel.similarity(novel.signature(program()), novel.signature(RENAMED)) == 1.0


def test_deep_trees_are_known_by_their_source():
    deep = "x = " + "-" * 3000 + "1"
    try:
        compile(deep, "deep", "exec")
    except (RecursionError, MemoryError, SyntaxError):
        deep = "x = " + "+".join(["1"] * 3000)
    assert novel.signature(deep).tree != novel.signature(deep + " ").tree


def test_memory_gives_the_signatures_of_what_it_remembers(tmp_path, pool):
    (report,) = gate.run_gates(pool, [program()])
    record = EnvironmentRecord(id="a", source=program(), class_name="LoopSearch", report=report)
    refused = EnvironmentRecord(id="b", source="no program", class_name="", report=gate.run_gates(pool, [None])[0])
    with Memory(tmp_path / "environments.sqlite") as memory:
        memory.add(0, [record, refused])
    with Memory(tmp_path / "environments.sqlite") as memory:
        (known,) = memory.signatures()
    assert report.behaviour and known.behaviour == report.behaviour
    assert failure(pool, [known], program(word="reef"), "behaviour") == "duplicate"
