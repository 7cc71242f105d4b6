"""Programs drawn from the bundled families: the fixed-environment baseline and the held-out probe.

A draw is a function of (split, seed, position), so the same call gives the same
programs in every process and a longer list begins with the shorter one.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spade_jax.envs import families
from spade_jax.envs.contract import environment_id
from spade_jax.envs.families import base
from spade_jax.envs.families import tools as tool_families
from spade_jax.structs import EnvironmentRecord

# Theme words of programs that no document grounds.
_NOUNS = """
anchor basket beacon bridge candle canyon carpet castle engine garden harbor helmet island ladder lantern market
meadow mirror orchard palace pebble pocket rocket signal temple tunnel valley violin wagon window winter workshop
"""
THEME_WORDS = tuple(_NOUNS.split())
_WORDS_A_PROGRAM = 16
_PROBE_SEED = 20_250

# Suites of the probe, from near to far: unseen instances of what the warm start has seen, its
# families at difficulties kept out of it, and families kept out of it.
INSTANCE, RANGE, FAMILY = SUITES = ("instance", "range", "family")


@dataclasses.dataclass(frozen=True)
class Bundled:
    """One drawn program.

    Attributes:
      record: source, class name, skill and hint, as the designer's programs have them.
      family: the family that wrote it.
      params: the constants it was written with, e.g. for `family.player`.
      split: of its difficulty, base.TRAIN or base.HELD_OUT.
    """

    record: EnvironmentRecord
    family: base.Family
    params: Mapping[str, Any]
    split: str

    @property
    def suite(self) -> str:
        """How far from the warm start it is, one of SUITES."""
        if self.split == base.TRAIN:
            return INSTANCE
        return FAMILY if self.family.held_out else RANGE


def families_of(kind: str) -> tuple[base.Family, ...]:
    """Every bundled family of a kind, "game" or "tool", ordered by name."""
    return tool_families.all_families() if kind == "tool" else families.all_families()


def bundled_records(
    split: str, count: int, seed: int, words: Sequence[str] = THEME_WORDS, kind: str = "game"
) -> list[Bundled]:
    """Draws `count` programs, taking the families in turn.

    Args:
      split: base.TRAIN draws from the families of the warm start, at its difficulties;
        base.HELD_OUT draws from all families, at difficulties kept out of it.
      count: how many programs, at least 0.
      seed: names the draw; two seeds share next to no program.
      words: theme words to choose from, 16 or more.
      kind: "game" or "tool".

    Raises:
      ValueError: an unknown split, or too few words.
    """
    if split not in (base.TRAIN, base.HELD_OUT):
        raise ValueError(f"split is {split!r}; give {base.TRAIN!r} or {base.HELD_OUT!r}.")
    if len(words) < _WORDS_A_PROGRAM:
        raise ValueError(f"words holds {len(words)} theme words; give at least {_WORDS_A_PROGRAM}.")
    sources = [family for family in families_of(kind) if split == base.HELD_OUT or not family.held_out]
    return [
        _draw(sources[i % len(sources)], random.Random(f"{seed}/{split}/{i}"), split, words, kind) for i in range(count)
    ]


def held_out_probe(instances: int, kind: str = "game", skills: Sequence[str] | None = None) -> list[Bundled]:
    """The one fixed probe of a kind, the same for every policy and run, of programs that nothing is trained on.

    `instances` programs of every family at each of its difficulties: the warm start's, for families
    that it has seen, and those kept out of it, for all. `skills`, where given, are those whose known
    families are wanted, beside all that are held out; the programs are the same with or without it.
    """
    every = families_of(kind)
    known = sum(not family.held_out for family in every)
    drawn = [
        *bundled_records(base.HELD_OUT, instances * len(every), _PROBE_SEED, kind=kind),
        *bundled_records(base.TRAIN, instances * known, _PROBE_SEED, kind=kind),
    ]
    return [b for b in drawn if skills is None or b.suite == FAMILY or b.record.skill in skills]


def _draw(family: base.Family, rng: random.Random, split: str, words: Sequence[str], kind: str) -> Bundled:
    params = family.parameters(rng, split)
    source = family.source(params, rng.sample(list(words), _WORDS_A_PROGRAM))
    record = EnvironmentRecord(
        id=environment_id(source),
        source=source,
        class_name=re.search(r"^class (\w+)", source, re.MULTILINE)[1],
        kind=kind,
        skill=family.skill,
        hint=family.hint(params),
    )
    return Bundled(record, family, params, split)
