"""A regeneration: which places there are, what the designer is asked for each, what is in play."""

from __future__ import annotations

import dataclasses
import functools
import logging
import random
from collections.abc import Callable

from spade_jax import structs
from spade_jax.designer import canaries, corpus, gate, prompts, tool_prompts
from spade_jax.designer.memory import Memory
from spade_jax.envs.bundled import bundled_records
from spade_jax.envs.families import base
from spade_jax.rollout import generate
from spade_jax.rollout.design import Assignment, Design, DesignSettings, write_environments
from spade_jax.runtime import hosts
from spade_jax.sampler import Engine
from spade_jax.sandbox import Pool
from spade_jax.tokens import chat

_FIXED_SLICES = 8  # the fixed-environment baseline goes round this many regenerations' worth of programs


@dataclasses.dataclass(frozen=True)
class RegenerationSettings:
    """What is asked of the designer.

    Attributes:
      skills: the active skills, or domains of tool use.
      places_per_skill: environments wanted per skill.
      exemplars: programs of the same skill shown from memory.
      negatives: class names shown as what to avoid.
      replay_share: share of the places that replay a frontier environment instead.
      document_words: words of the document shown at most.
      context: tokens of a designer conversation.
    """

    skills: tuple[str, ...]
    places_per_skill: int
    exemplars: int
    negatives: int
    replay_share: float
    document_words: int
    context: int


@dataclasses.dataclass(frozen=True)
class Regeneration:
    """The outcome.

    Attributes:
      designs: every attempt at every place, valid or not.
      replayed: environments the designer did not write now; they give it no gradient.
      in_play: what the agent plays until the next regeneration, no program twice.
      cursor: the corpus cursor behind the last document drawn.
      canaries_wrong: programs of known worth on which the gate's verdict was wrong; None where none were sent.
    """

    designs: list[Design]
    replayed: list[structs.EnvironmentRecord]
    in_play: list[structs.EnvironmentRecord]
    cursor: corpus.Cursor
    canaries_wrong: int | None = None

    def first_attempts(self) -> list[Design]:
        """The samples that train."""
        return [design for design in self.designs if design.attempt == 0]


def regenerate(
    engine: Engine,
    pool: Pool,
    template: chat.ChatTemplate,
    memory: Memory,
    documents: corpus.Corpus,
    cursor: corpus.Cursor,
    settings: RegenerationSettings,
    design_settings: DesignSettings,
    *,
    step: int,
    rng: Callable[..., random.Random],
) -> Regeneration:
    """Fills every place with a new or a replayed environment.

    Args:
      step: policy step, for provenance and staleness.
      rng: (*names) -> random.Random of that name, so that a draw depends only on what it is for.
    """
    places = [skill for skill in settings.skills for _ in range(settings.places_per_skill)]
    replayed = memory.replay(int(settings.replay_share * len(places)), step, rng("replay", step))
    # Replays take the last places of the skills in turn, so that no skill loses all of its new programs.
    by_turn = sorted(range(len(places)), key=lambda p: (-(p % settings.places_per_skill), p))
    new_places = sorted(by_turn[len(replayed) :])
    position = {"cursor": cursor}

    def assign(place: int, attempt: int) -> Assignment:
        document, position["cursor"] = documents.draw(position["cursor"])
        draw = rng("assign", step, place, attempt)
        exemplars = memory.exemplars(places[place], settings.exemplars, draw)
        negatives = memory.negatives(places[place], settings.negatives, draw)
        text = corpus.first_words(document.text, settings.document_words)
        ask = prompts.designer_messages
        if design_settings.gate.kind == "tool":
            ask = functools.partial(tool_prompts.designer_messages, variant=tool_prompts.draw_variant(draw))
        # Where exemplars are long, fewer are shown: the program must fit behind them.
        for count in range(len(exemplars), -1, -1):
            shown = exemplars[:count]
            messages = ask(places[place], text, shown, negatives, style=design_settings.style, rng=draw)
            if generate.fits(template, messages, settings.context, design_settings.max_new_tokens):
                break
        return Assignment(place, places[place], document.id, tuple(e.id for e in shown), messages)

    # Every process's own sandbox is tried.
    canaries_wrong = max(hosts.gather(_send_canaries(pool, design_settings.gate, rng("canaries", step))))
    known = memory.signatures() if "novel" in design_settings.gate.checks else ()
    designs = write_environments(engine, pool, template, new_places, assign, design_settings, step=step, known=known)
    written = [design.record for design in designs if design.valid]
    in_play = list({record.id: record for record in [*written, *replayed]}.values())
    return Regeneration(designs, replayed, in_play, position["cursor"], canaries_wrong)


def _send_canaries(pool: Pool, config: gate.GateConfig, rng: random.Random) -> int:
    """How many programs of known worth the gate misjudges; each is a warning. Nobody trains on them."""
    # They resemble each other, and novelty is not what they try.
    config = dataclasses.replace(config, checks=tuple(check for check in config.checks if check != "novel"))
    sent = [canary for canary in canaries.draw(rng, config.kind) if canary.check in ("", *config.checks)]
    reports = gate.run_gates(pool, [canary.source for canary in sent], config)
    wrong = 0
    for canary, report in zip(sent, reports, strict=True):
        if report.failure in (*canary.failures, "infrastructure"):
            continue
        wrong += 1
        logging.warning(
            "the gate's verdict on the %s canary is %s where %s was due (%s): do not trust this run's programs",
            canary.name, report.failure or "sound", " or ".join(str(f or "sound") for f in canary.failures),
            report.verdicts[-1].evidence,
        )  # fmt: skip
    return wrong


def bundled(places: int, index: int, cursor: corpus.Cursor, *, seed: int, kind: str = "game") -> Regeneration:
    """The fixed-environment baseline: the `index`-th slice of a fixed set of bundled programs, hints included."""
    fixed = bundled_records(base.TRAIN, _FIXED_SLICES * places, seed, kind=kind)
    first = index % _FIXED_SLICES * places
    records = {drawn.record.id: drawn.record for drawn in fixed[first : first + places]}
    return Regeneration([], list(records.values()), list(records.values()), cursor)


def design_metrics(regeneration: Regeneration, memory: Memory) -> dict[str, float]:
    """{tag: share} over the first attempts, {} without any; call before they enter `memory`."""
    first = regeneration.first_attempts()
    if not first:
        return {}
    failed_at = [next((v.name for v in d.record.report.verdicts if v.passed is False), "") for d in first]
    known = {record.id for record in memory.members()}
    novel = [d.record.id not in known for d in first]
    count = len(first)
    return {
        "designer/valid_share": sum(design.valid for design in first) / count,
        "designer/novel_share": sum(novel) / count,
        **({} if regeneration.canaries_wrong is None else {"designer/canary_wrong": regeneration.canaries_wrong}),
        **{
            f"designer/reject/{check}": failed_at.count(check) / count for check in gate.checks_of(first[0].record.kind)
        },
    }
