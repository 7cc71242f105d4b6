"""The designer's half of a regeneration: programs written, checked, hinted.

First attempts of all places are drawn together; only they train. Places whose
program fails the gate are asked again with a fresh document, up to a number of
attempts, so that the agent has something to play; those retries give no gradient.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Sequence

from spade_jax import structs
from spade_jax.designer import gate, parse, prompts, tool_prompts
from spade_jax.envs.contract import environment_id
from spade_jax.rollout.generate import generate
from spade_jax.runtime import hosts
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sandbox import Pool
from spade_jax.tokens import chat, parsing


@dataclasses.dataclass(frozen=True)
class DesignSettings:
    """How environments are written.

    Attributes:
      sampling: distribution of the program's tokens.
      max_new_tokens: budget of a program.
      hint_sampling: distribution of the hint's tokens.
      hint_max_new_tokens: budget of a hint.
      attempts: programs drawn per place before it stays empty.
      style: prompt style, see `designer.prompts`.
      gate: sizes of the gate's checks, and the kind of programs, "game" or "tool".
    """

    sampling: SamplingConfig
    max_new_tokens: int
    hint_sampling: SamplingConfig
    hint_max_new_tokens: int
    attempts: int
    style: str
    gate: gate.GateConfig


@dataclasses.dataclass(frozen=True)
class Assignment:
    """What one place is asked for in one attempt.

    Attributes:
      place: index of the place in this regeneration.
      skill: the skill to exercise.
      document_id: the document that grounds it.
      parents: ids of the exemplars shown.
      messages: the designer prompt.
    """

    place: int
    skill: str
    document_id: str
    parents: tuple[str, ...]
    messages: Sequence[tuple[str, str]]


@dataclasses.dataclass(frozen=True)
class Design:
    """One attempt at one place.

    Attributes:
      assignment: what was asked.
      attempt: 0 for the sample that trains.
      episode: the designer's single response, as an episode.
      record: the program with its report, and its hint once it has one.
    """

    assignment: Assignment
    attempt: int
    episode: structs.Episode
    record: structs.EnvironmentRecord

    @property
    def valid(self) -> bool:
        return self.record.report.valid


def write_environments(
    engine: Engine,
    pool: Pool,
    template: chat.ChatTemplate,
    places: Sequence[int],
    assign: Callable[[int, int], Assignment],
    settings: DesignSettings,
    *,
    step: int,
    known: Sequence[gate.Signature] = (),
) -> list[Design]:
    """Fills `places` with checked and hinted environments.

    Args:
      engine: the sampler.
      pool: the sandbox that the gate runs programs in.
      template: renders messages to tokens.
      places: indices of the places to fill.
      assign: (place, attempt) -> what to ask for; draws document and exemplars.
      settings: sampling and budgets.
      step: the policy step, for ids and provenance.
      known: signatures of the programs that new ones must differ from.

    Returns:
      Every attempt, valid or not, ordered by attempt and then place.
    """
    designs: list[Design] = []
    known = list(known)
    open_places = list(places)
    for attempt in range(settings.attempts):
        if not open_places:
            break
        assignments = [assign(place, attempt) for place in open_places]
        turns = generate(
            engine,
            template,
            [(f"{step}/design/{a.place}/{attempt}", a.messages) for a in assignments],
            settings.sampling,
            settings.max_new_tokens,
        )
        sources = [parsing.fenced_program(turn.response) for turn in turns]
        reports = _checked(pool, sources, settings.gate, known)
        drawn = [
            _design(assignment, attempt, turn, source, report, step, settings.gate.kind)
            for assignment, turn, source, report in zip(assignments, turns, sources, reports, strict=True)
        ]
        drawn = _with_hints(engine, pool, template, drawn, settings, step)
        designs += drawn
        known += [gate.signature(d.record.source, d.record.report.behaviour) for d in drawn if d.valid]
        open_places = [design.assignment.place for design in drawn if not design.valid]
    return designs


def _design(
    assignment: Assignment,
    attempt: int,
    turn: structs.Turn,
    source: str | None,
    report: structs.GateReport,
    step: int,
    kind: str,
) -> Design:
    source = turn.response if source is None else source
    record = structs.EnvironmentRecord(
        id=environment_id(source),
        source=source,
        class_name=parse.parse_program(source, kind).class_name if report.valid else "",
        kind=kind,
        skill=assignment.skill,
        document_id=assignment.document_id,
        parents=assignment.parents,
        prompt_hash=hashlib.sha256(repr(list(assignment.messages)).encode()).hexdigest(),
        policy_step=step,
        report=report,
    )
    episode = structs.Episode(
        environment_id=record.id,
        role=structs.DESIGNER,
        arm=structs.PLAIN,
        seed_index=0,
        seed=0,
        turns=(turn,),
        episode_return=0.0,
        status=structs.SUCCESS if report.valid else structs.FAILURE,
        reason=report.failure or "",
    )
    return Design(assignment, attempt, episode, record)


def _with_hints(
    engine: Engine, pool: Pool, template: chat.ChatTemplate, drawn: list[Design], settings: DesignSettings, step: int
) -> list[Design]:
    """A separate call reads each valid source and writes its hint; one that leaks is written again, once."""
    hint_messages = tool_prompts.hint_messages if settings.gate.kind == "tool" else prompts.hint_messages
    valid = {design.assignment.place: design for design in drawn if design.valid}
    hinted: dict[int, Design] = {}
    leaks = dict.fromkeys(valid, "")  # place -> why its hint is asked for again
    for name in ("hint", "hint again"):
        asked = [valid[place] for place in leaks]
        turns = generate(
            engine,
            template,
            [
                (
                    f"{step}/{name}/{design.assignment.place}/{design.attempt}",
                    hint_messages(design.record.source, style=settings.style, leaked=leaks[design.assignment.place]),
                )
                for design in asked
            ],
            settings.hint_sampling,
            settings.hint_max_new_tokens,
        )
        hints = [turn.response.strip() for turn in turns]
        checked = hosts.spread(
            [(design.record.source, hint) for design, hint in zip(asked, hints, strict=True)],
            lambda share: gate.run_hint_checks(pool, *_columns(share), settings.gate),
            structs.CheckVerdict,
        )
        leaks = {}
        for design, hint, (verdict, failure) in zip(asked, hints, checked, strict=True):
            hinted[design.assignment.place] = _judged(design, hint, verdict, failure)
            if failure == "leak":
                leaks[design.assignment.place] = verdict.evidence
    return [hinted.get(design.assignment.place, design) for design in drawn]


def _checked(
    pool: Pool, sources: Sequence[str | None], config: gate.GateConfig, known: Sequence[gate.Signature]
) -> list[structs.GateReport]:
    """`gate.run_gates`; of several processes each checks its share."""
    reports = hosts.spread(
        sources, lambda share: gate.run_checks(pool, share, config, known), structs.GateReport, structs.CheckVerdict
    )
    return gate.refuse_duplicates(sources, reports, config)


def _columns(pairs: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _judged(design: Design, hint: str, verdict: structs.CheckVerdict, failure: str | None) -> Design:
    """The design with its hint, and refused where the hint is."""
    report = design.record.report
    if failure:
        report = structs.GateReport((*report.verdicts, verdict), failure, False)
        episode = dataclasses.replace(design.episode, status=structs.FAILURE, reason=failure)
        design = dataclasses.replace(design, episode=episode)
    return dataclasses.replace(design, record=dataclasses.replace(design.record, hint=hint, report=report))
