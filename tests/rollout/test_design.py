"""The designer's half with a scripted policy in place of the sampler, and the real gate and sandbox."""

import dataclasses
import random

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.designer import corpus, gate, memory, prompts
from spade_jax.envs import families
from spade_jax.envs.families import base
from spade_jax.rollout import design as design_lib
from spade_jax.rollout import regenerate as regenerate_lib
from spade_jax.sampler import Response, SamplingConfig

FAMILY = families.by_name("number_search")
WORDS = [f"word{letter}" for letter in "abcdefgh"]


def program(draw):
    return prompts.fenced(FAMILY.source(FAMILY.parameters(random.Random(draw), base.TRAIN), WORDS))


class ScriptedEngine:
    """Answers each conversation with `answer(conversation id)`; the sampler's interface, none of its maths."""

    def __init__(self, tokenizer, answer):
        self._tokenizer, self._answer = tokenizer, answer
        self._ids, self._waiting = {}, []
        self.prompts = {}

    @property
    def busy(self):
        return bool(self._waiting)

    def open(self, conversation_id, sampling, group=None):
        assert conversation_id not in self._ids.values(), "a conversation id was used twice"
        self._ids[len(self._ids)] = conversation_id
        return len(self._ids) - 1

    def submit(self, handle, tokens, max_new_tokens):
        self.prompts[self._ids[handle]] = self._tokenizer.decode(tokens)
        self._waiting.append(handle)

    def step(self):
        done, self._waiting = self._waiting, []
        return [self._response(handle) for handle in done]

    def close(self, handle):
        assert handle in self._ids

    def _response(self, handle):
        ids = [*self._tokenizer.encode(self._answer(self._ids[handle])), self._tokenizer.end_id]
        return Response(
            handle=handle,
            tokens=np.array(ids, np.int32),
            logp=np.zeros(len(ids), np.float32),
            versions=np.zeros(len(ids), np.int32),
            stopped=True,
            out_of_context=False,
        )


SETTINGS = design_lib.DesignSettings(
    sampling=SamplingConfig(),
    max_new_tokens=400,
    hint_sampling=SamplingConfig(),
    hint_max_new_tokens=40,
    attempts=3,
    style="tiny",
    gate=gate.GateConfig(gate.CHECKS, max_turns=8, novel_tiers=("source", "tree")),
)


def assignment(place, attempt):
    return design_lib.Assignment(place, "optimization", f"document {place}.{attempt}", (), [("user", "Write.")])


def answer(conversation_id):
    """Place 0 succeeds at once, place 1 at the third attempt, place 2 never."""
    _, kind, place, attempt = conversation_id.split("/")
    if kind == "hint":
        return f"hint for {place}"
    good = place == "0" or (place, attempt) == ("1", "2")
    return program(int(place)) if good else "I would rather not."


@pytest.fixture
def designs(template, pool):
    engine = ScriptedEngine(template.tokenizer, answer)
    return design_lib.write_environments(engine, pool, template, [0, 1, 2], assignment, SETTINGS, step=5)


def test_places_are_retried_until_they_are_filled_or_attempts_run_out(designs):
    assert [(d.assignment.place, d.attempt, d.valid) for d in designs] == [
        (0, 0, True),
        (1, 0, False),
        (2, 0, False),
        (1, 1, False),
        (2, 1, False),
        (1, 2, True),
        (2, 2, False),
    ]


def test_valid_programs_are_hinted_and_only_they(designs):
    assert [d.record.hint for d in designs if d.valid] == ["hint for 0", "hint for 1"]
    assert all(d.record.hint == "" for d in designs if not d.valid)


def test_records_carry_their_provenance(designs):
    record = designs[0].record
    assert record.source == program(0).removeprefix("```python\n").removesuffix("```")
    assert (record.document_id, record.policy_step, record.skill) == ("document 0.0", 5, "optimization")
    assert record.class_name == "WordaSearch"
    assert designs[1].record.report.failure == "no_code"


CODES = """\
import random


class Door:
    def __init__(self, max_turns=4, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        rng = random.Random(seed)
        self.turn = 0
        self.code = rng.choice("4417 8052 6391 2275 9310 5148 7763 1096".split())
        return f"Door of room {rng.randint(1, 500)}. Say its code.", {}

    def step(self, action):
        self.turn += 1
        won = action == "\\\\boxed{" + self.code + "}"
        return "Yes." if won else "No.", float(won), won or self.turn >= self.max_turns, False, {}

    def solution(self):
        return [self.code]
"""
TELLING = "It is 4417, 8052, 6391, 2275, 9310, 5148, 7763 or 1096."


@pytest.mark.parametrize(
    ("hints", "failure"),
    [
        (("Four digits.",), None),
        ((TELLING, "Four digits."), None),  # written again once
        ((TELLING, TELLING), "leak"),
    ],
)
@pytest.mark.parametrize("style", ["tiny", "full"])
def test_a_leaking_hint_is_written_again_once(template, pool, hints, failure, style):
    said = iter(hints)
    engine = ScriptedEngine(template.tokenizer, lambda name: prompts.fenced(CODES) if "design" in name else next(said))
    settings = dataclasses.replace(SETTINGS, attempts=1, style=style)
    (design,) = design_lib.write_environments(engine, pool, template, [0], assignment, settings, step=5)
    assert next(said, None) is None
    assert (design.record.report.failure, design.record.hint) == (failure, hints[-1])
    assert design.episode.status == (structs.FAILURE if failure else structs.SUCCESS)
    if len(hints) > 1:
        again = engine.prompts["5/hint again/0/0"]
        assert ("earlier hint was refused" in again) == (style == "full")
        assert (again == engine.prompts["5/hint/0/0"]) == (style == "tiny")


def test_a_copy_of_what_is_known_is_a_duplicate(template, pool):
    known = [gate.signature(prompts.fenced(CODES).removeprefix("```python\n").removesuffix("```"))]
    engine = ScriptedEngine(template.tokenizer, lambda name: prompts.fenced(CODES) if "design" in name else "Digits.")
    designs = design_lib.write_environments(engine, pool, template, [0, 1], assignment, SETTINGS, step=5, known=known)
    assert {design.record.report.failure for design in designs} == {"duplicate"}


def regeneration(template, pool, tmp_path, settings, store=None):
    documents = corpus.Corpus({"x": [corpus.Document(str(i), f"text {i}", "x") for i in range(50)]}, {"x": 1.0}, 0)
    engine = ScriptedEngine(template.tokenizer, lambda name: program(hash_free(name)) if "design" in name else "h")
    with memory.Memory(tmp_path / "environments.sqlite") as opened:
        if store:
            store(opened)
        return regenerate_lib.regenerate(
            engine, pool, template, opened, documents, documents.start(), settings, SETTINGS,
            step=4, rng=lambda *names: random.Random(str(names)),
        )  # fmt: skip


def hash_free(name):
    return sum(name.encode())


ASKED = regenerate_lib.RegenerationSettings(
    skills=("optimization", "causal inference"),
    places_per_skill=2,
    exemplars=1,
    negatives=1,
    replay_share=0.5,
    document_words=20,
    context=1024,
)


def test_a_regeneration_fills_every_place_and_moves_the_corpus_on(template, pool, tmp_path):
    got = regeneration(template, pool, tmp_path, ASKED)
    assert [d.assignment.skill for d in got.designs] == ["optimization"] * 2 + ["causal inference"] * 2
    assert got.replayed == []
    assert len({record.id for record in got.in_play}) == len(got.in_play)
    assert got.cursor == {"x": {"epoch": 0, "index": 4}}
    assert [d.attempt for d in got.first_attempts()] == [0] * 4


def test_frontier_environments_replace_new_ones_evenly_over_skills(template, pool, tmp_path):
    report = structs.GateReport((), None, True)

    def store(opened):
        for i in range(3):
            record = structs.EnvironmentRecord(
                id=f"old{i}", source=f"source = {i}", class_name=f"Old{i}", skill="optimization", report=report
            )
            opened.add(0, [record])
            opened.record_statistics(0, {f"old{i}": {"win_rate": 0.5, "regret": 0.2, "regret_se": 0.1}})

    got = regeneration(template, pool, tmp_path, ASKED, store)
    assert len(got.replayed) == 2
    assert [d.assignment.skill for d in got.designs] == ["optimization", "causal inference"]
    assert {record.id for record in got.replayed} < {record.id for record in got.in_play}


def test_the_fixed_environment_baseline_needs_no_designer():
    first = regenerate_lib.bundled(6, 0, {}, seed=0)
    assert {record.kind for record in first.in_play} == {"game"}
    assert {record.kind for record in regenerate_lib.bundled(6, 0, {}, seed=0, kind="tool").in_play} == {"tool"}
    assert first.designs == []
    assert len(first.in_play) == 6
    assert all(record.hint for record in first.in_play)
    assert first.in_play == regenerate_lib.bundled(6, 8, {}, seed=0).in_play  # it goes round
    assert first.in_play != regenerate_lib.bundled(6, 1, {}, seed=0).in_play
