from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap

import pytest

from spade_jax.designer import memory
from spade_jax.designer.memory import Memory, MemoryConfig
from spade_jax.structs import CheckVerdict, EnvironmentRecord, GateReport

SOUND = GateReport((CheckVerdict("parse", True, "class A", 0.25), CheckVerdict("solvable", None, "none")), None, False)
BROKEN = GateReport((CheckVerdict("parse", False, "line 1"),), "unparsable", False)
SKILL = "optimization"


def record(name: str, *, report=SOUND, skill=SKILL, **statistics: float) -> EnvironmentRecord:
    return EnvironmentRecord(
        id=name,
        source=f"class {name}: pass\n",
        class_name=name,
        skill=skill,
        document_id=f"document of {name}",
        parents=("p", "q"),
        prompt_hash="h",
        policy_step=3,
        hint="Look behind the door.",
        report=report,
        statistics=statistics,
    )


@pytest.fixture
def open_memory(tmp_path):
    opened = []

    def open_(config=memory.STRICT, name="environments.sqlite"):
        opened.append(Memory(tmp_path / name, config))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def ids(records) -> list[str]:
    return [item.id for item in records]


# ---- storing ----


def test_records_round_trip_through_a_reopened_file(open_memory):
    written = record("A", regret=0.1 + 0.2, win_rate=1 / 3)
    store = open_memory()
    store.add(0, [written])
    store.close()
    assert open_memory().members() == [written]
    assert open_memory().get("A") == written
    assert open_memory().get("B") is None


def test_rejected_programs_are_kept_but_not_remembered(open_memory):
    store = open_memory()
    store.add(1, [record("A"), record("B", report=BROKEN), record("C", report=None)])
    assert ids(store.members()) == ["A"]
    assert [(step, item.id) for step, item in store.programs()] == [(1, "A"), (1, "B"), (1, "C")]
    assert store.get("B").report == BROKEN


def test_the_same_program_is_remembered_once(open_memory):
    store = open_memory()
    store.add(0, [record("A"), record("A")])
    store.add(1, [record("A")])
    assert len(store) == 1
    assert len(store.programs()) == 3


def test_a_store_in_main_memory_takes_over_and_goes_on_alike(open_memory):
    store = open_memory(MemoryConfig(capacity=2, ranked_by_lower_bound=True, cells=True))
    store.add(0, [record("A", regret=0.1 + 0.2, win_rate=1 / 3), record("B", report=BROKEN)])
    store.add(1, [record("C"), record("D")])
    other = Memory(":memory:", store.config)
    other.load(json.loads(json.dumps(store.dump())))
    assert other.digest() == store.digest() and other.members() == store.members()
    for each in (store, other):
        each.add(2, [record("E")])
        each.record_statistics(2, {"E": {"win_rate": 0.5, "regret": float("nan")}})
    assert other.digest() == store.digest()
    other.close()


def test_statistics_by_step_the_latest_counts(open_memory):
    store = open_memory()
    store.add(0, [record("A")])
    store.record_statistics(0, {"A": {"win_rate": 0.5, "regret": 0.2}})
    store.record_statistics(2, {"A": {"win_rate": 0.75, "regret": float("nan")}})
    assert store.members()[0].statistics == {"regret": 0.2, "win_rate": 0.75}
    assert store.history("A") == [
        (0, "regret", 0.2),
        (0, "win_rate", 0.5),
        (2, "regret", None),
        (2, "win_rate", 0.75),
    ]


def test_text_that_has_no_utf8_form_is_stored(open_memory):
    store = open_memory()
    store.add(0, [dataclasses.replace(record("A", report=BROKEN), source="x = '\ud800'\0", hint="\udfff")])
    assert store.get("A").source == "x = '?'\0"


@pytest.mark.parametrize("field", ["source", "class_name", "document_id", "skill", "hint"])
def test_a_lone_surrogate_in_any_text_is_replaced(open_memory, field):
    store = open_memory()
    store.add(0, [dataclasses.replace(record("A"), **{field: "a\ud800b"})])
    (kept,) = store.members()
    assert getattr(kept, field) == "a?b"
    assert store.exemplars(kept.skill, 1, random.Random(0)) == []  # readable by those who select


# ---- rollback ----


def fill(store: Memory, steps) -> None:
    """A little history with every kind of write, evictions included."""
    for step in steps:
        rng = random.Random(step)
        store.add(step, [record(f"E{step}x{i}", report=BROKEN if i == 2 else SOUND) for i in range(3)])
        names = [member.id for member in store.members()]
        store.record_statistics(
            step, {name: {"win_rate": rng.random(), "regret": rng.random(), "regret_se": 0.1} for name in names}
        )


@pytest.mark.parametrize("config", [MemoryConfig(5, True, True), MemoryConfig(5, False, False)])
def test_rollback_is_exact_and_the_rerun_ends_alike(open_memory, config):
    straight, crashed = open_memory(config, "a.sqlite"), open_memory(config, "b.sqlite")
    fill(straight, range(6))
    before = straight.digest(), straight.members()
    fill(straight, range(6, 12))
    assert straight.digest() != before[0]

    fill(crashed, range(9))
    crashed.rollback(5)
    assert (crashed.digest(), crashed.members()) == before
    fill(crashed, range(6, 12))
    assert crashed.digest() == straight.digest()
    assert crashed.members() == straight.members()

    crashed.rollback(-1)
    assert crashed.programs() == []
    assert crashed.digest() == open_memory(config, "c.sqlite").digest()


def test_rollback_undoes_an_eviction_and_a_return(open_memory):
    store = open_memory(MemoryConfig(1, False, False))
    store.add(0, [record("A")])
    store.add(1, [record("B")])
    assert ids(store.members()) == ["B"]
    store.add(2, [record("A")])
    assert ids(store.members()) == ["A"]
    store.rollback(1)
    assert ids(store.members()) == ["B"]
    store.rollback(0)
    assert ids(store.members()) == ["A"]


def test_digest_ignores_wall_times_only(open_memory):
    slow = dataclasses.replace(SOUND, verdicts=(dataclasses.replace(SOUND.verdicts[0], seconds=9.0), SOUND.verdicts[1]))
    digests = []
    for i, item in enumerate([record("A"), record("A", report=slow), dataclasses.replace(record("A"), hint="other")]):
        store = open_memory(name=f"{i}.sqlite")
        store.add(0, [item])
        digests.append(store.digest())
    assert digests[0] == digests[1] != digests[2]


def test_kill_minus_nine_while_writing_leaves_whole_steps(tmp_path):
    path = tmp_path / "environments.sqlite"
    script = textwrap.dedent(
        """
        import sys
        from spade_jax.designer.memory import Memory
        from spade_jax.structs import EnvironmentRecord, GateReport
        store = Memory(sys.argv[1])
        for step in range(100_000):
            store.add(step, [EnvironmentRecord(f"{step}-{i}", "x" * 5000, "A", report=GateReport((), None, True))
                             for i in range(8)])
            print(step, flush=True)
        """
    )
    for _ in range(3):
        path.unlink(missing_ok=True)
        process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE, text=True)
        try:
            committed = [process.stdout.readline() for _ in range(4)]
        finally:
            os.kill(process.pid, signal.SIGKILL)
            committed += process.stdout.readlines()
            process.wait()
            process.stdout.close()
        last = int(committed[-1])
        with Memory(path) as store:
            steps = [step for step, _ in store.programs()]
            assert last <= max(steps) <= last + 1  # what was acknowledged is there
            assert all(steps.count(step) == 8 for step in range(max(steps) + 1))  # and no step is half there
            store.rollback(2)
            assert len(store) == 24
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)


# ---- bad files ----


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "environments.sqlite"
    path.write_text("not a database, but long enough to have a header of its own\n" * 20)
    with pytest.raises(
        ValueError, match=r"environments\.sqlite cannot be opened as an environment memory .*move it away"
    ):
        Memory(path)
    assert path.read_text().startswith("not a database")


@pytest.mark.parametrize("place", [0.0, 0.4, 0.7])
def test_a_damaged_file_is_refused_when_it_is_opened(open_memory, place):
    with contextlib.closing(open_memory()) as store:
        store.add(0, [dataclasses.replace(record(str(i)), source=f"{i:03}" * 1000) for i in range(20)])
    damaged = bytearray(store.path.read_bytes())
    start = max(100, int(place * len(damaged)) // 4096 * 4096)
    damaged[start : start + 4096] = b"\xdf" * len(damaged[start : start + 4096])
    store.path.write_bytes(damaged)
    with pytest.raises(ValueError, match="environments.sqlite cannot be opened as an environment memory"):
        Memory(store.path)


def test_a_database_of_another_program(tmp_path):
    path = tmp_path / "other.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(ValueError, match="of another program or version"):
        Memory(path)


def test_a_missing_folder(tmp_path):
    with pytest.raises(ValueError, match="is no folder"):
        Memory(tmp_path / "missing" / "environments.sqlite")


def test_a_full_disk_is_one_clear_error_and_nothing_is_half_written(open_memory):
    store = open_memory()
    store.add(0, [record("A")])
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(OSError, match="cannot be written .*full.*free space"):
        store.add(1, [record("B"), dataclasses.replace(record("C"), source="x" * 1_000_000)])
    assert ids(store.members()) == ["A"]
    assert len(store.programs()) == 1


# ---- selecting ----


def test_exemplars_are_of_the_skill_and_learnable(open_memory):
    store = open_memory()
    store.add(
        0,
        [
            record("Easy", win_rate=0.86, regret=0.9),
            record("Hard", win_rate=0.14, regret=0.9),
            record("Edge", win_rate=0.85, regret=0.1),
            record("Good", win_rate=0.5, regret=0.1),
            record("Other", skill="spatial reasoning", win_rate=0.5, regret=0.9),
            record("Fresh"),
        ],
    )
    assert sorted(ids(store.exemplars(SKILL, 9, random.Random(0)))) == ["Edge", "Good"]
    assert store.exemplars("causal inference", 2, random.Random(0)) == []


@pytest.mark.parametrize(
    ("config", "expected"),
    # Twelve records, top max(3 * 2, 10) = 10: by regret the last two (R0, R1) never show; by
    # regret - SE record R11, with the largest SE, never shows, nor R0.
    [(memory.PAPER, {"R0", "R1"}), (memory.STRICT, {"R0", "R11"})],
)
def test_exemplars_come_from_the_top_by_the_presets_rank(open_memory, config, expected):
    store = open_memory(config)
    store.add(0, [record(f"R{i}", win_rate=0.5, regret=i / 100, regret_se=0.5 * (i == 11)) for i in range(12)])
    shown = set()
    for seed in range(200):
        drawn = ids(store.exemplars(SKILL, 2, random.Random(seed)))
        assert len(set(drawn)) == 2
        shown.update(drawn)
    assert {f"R{i}" for i in range(12)} - shown == expected


def test_strict_shows_one_per_document_and_per_class(open_memory):
    items = [
        record("A", win_rate=0.5, regret=0.3),
        dataclasses.replace(record("B", win_rate=0.5, regret=0.4), document_id="document of A"),
        dataclasses.replace(record("C", win_rate=0.5, regret=0.2), class_name="B"),
        dataclasses.replace(record("D", win_rate=0.5, regret=0.1), document_id=""),
        dataclasses.replace(record("E", win_rate=0.5, regret=0.1), document_id=""),
    ]
    strict, paper = open_memory(memory.STRICT, "a.sqlite"), open_memory(memory.PAPER, "b.sqlite")
    strict.add(0, items)
    paper.add(0, items)
    assert sorted(ids(strict.exemplars(SKILL, 5, random.Random(0)))) == ["B", "D", "E"]
    assert sorted(ids(paper.exemplars(SKILL, 5, random.Random(0)))) == ["A", "B", "C", "D", "E"]


def test_negatives_are_class_names_of_too_easy_and_too_hard_ones(open_memory):
    store = open_memory()
    store.add(
        0, [record("Easy", win_rate=0.95), record("Hard", win_rate=0.0), record("Edge", win_rate=0.9), record("New")]
    )
    assert sorted(store.negatives(SKILL, 5, random.Random(0))) == ["Easy", "Hard"]
    assert len(store.negatives(SKILL, 1, random.Random(0))) == 1
    assert store.negatives("causal inference", 1, random.Random(0)) == []


def test_draws_depend_on_the_generator_alone(open_memory):
    store = open_memory()
    fill(store, range(8))
    store.record_statistics(8, {name: {"win_rate": 0.5} for name in ids(store.members())})

    def draws(seed):
        rng = random.Random(seed)
        return ids(store.exemplars(SKILL, 2, rng)), ids(store.replay(3, 9, rng))

    assert draws(1) == draws(1)
    assert len({str(draws(seed)) for seed in range(10)}) > 5


def test_paper_evicts_the_oldest(open_memory):
    store = open_memory(MemoryConfig(2, False, False))
    store.add(0, [record("A", win_rate=0.5, regret=0.9), record("B", win_rate=0.5, regret=0.0)])
    store.add(1, [record("C")])
    assert ids(store.members()) == ["B", "C"]


def test_strict_evicts_the_lowest_of_the_fullest_cell_and_spares_the_unplayed(open_memory):
    store = open_memory(MemoryConfig(4, True, True))
    store.add(
        0,
        [
            record("Lone", win_rate=0.9, regret=-0.5, regret_se=0.1),  # worst of all, but alone in its cell
            record("High", win_rate=0.45, regret=0.3, regret_se=0.1),
            record("Low", win_rate=0.55, regret=0.3, regret_se=0.2),
            record("Other", skill="spatial reasoning", win_rate=0.5, regret=0.0, regret_se=0.0),
        ],
    )
    store.add(1, [record("New")])
    assert ids(store.members()) == ["Lone", "High", "Other", "New"]


def test_replay_prefers_high_rank_and_stale_ones(open_memory):
    store = open_memory()
    names = ["A", "B", "C", "Solved", "Playing"]
    store.add(0, [record(name) for name in names])
    store.record_statistics(10, {name: {"win_rate": 0.5, "regret": 0.1 * i} for i, name in enumerate("CBA")})
    store.record_statistics(10, {"Solved": {"win_rate": 1.0, "regret": 0.9}})
    store.record_statistics(10, {"Playing": {"win_rate": 0.5, "regret": 0.9}})

    def shares(step):
        counts = dict.fromkeys("ABC", 0)
        for seed in range(4000):
            (drawn,) = store.replay(1, step, random.Random(seed), exclude={"Playing"})
            counts[drawn.id] += 1
        return [counts[name] / 4000 for name in "ABC"]

    # Nothing is stale: rank alone, weights 1, 2^(-10/3), 3^(-10/3), total 1.1249.
    assert shares(10) == pytest.approx([0.889, 0.0882, 0.0228], abs=0.02)
    # C waits for 10 steps, the others for none: P = .7 P_rank, and .3 more for C.
    store.record_statistics(20, {"A": {"win_rate": 0.5}, "B": {"win_rate": 0.5}})
    assert shares(20) == pytest.approx([0.622, 0.0617, 0.316], abs=0.02)
    everything = store.replay(9, 20, random.Random(0))
    assert sorted(ids(everything)) == ["A", "B", "C", "Playing"]
