"""The designer's memory: every program ever written, and the few that are remembered.

One SQLite file holds each program with verdict, hint and provenance, and its statistics
by step. Rows are only ever added; membership of the memory is a pair of step columns.
So `rollback(step)` restores exactly the state after that step: later rows go, later
evictions are undone. Writes are one durable transaction per call (WAL), hence a process
killed at any moment leaves a file that opens.

A row written "in step s" belongs to the s-th training step; a checkpoint taken after
step s is matched by `rollback(s)`.
"""

from __future__ import annotations

import collections
import dataclasses
import errno
import hashlib
import json
import math
import os
import pathlib
import random
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from spade_jax.designer.gate import novel
from spade_jax.structs import CheckVerdict, EnvironmentRecord, GateReport, to_jsonable

# Marks a SQLite file as ours ("SPAD"); the user version is the layout's.
_APPLICATION_ID = 0x53504144
_LAYOUT = 1

_SCHEMA = """
CREATE TABLE programs (
    row INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    member INTEGER NOT NULL,       -- 1 if it entered the memory in `step`
    evicted_step INTEGER,          -- NULL while it is remembered
    id TEXT NOT NULL,
    source TEXT NOT NULL,
    class_name TEXT NOT NULL,
    kind TEXT NOT NULL,
    skill TEXT NOT NULL,
    document_id TEXT NOT NULL,
    parents TEXT NOT NULL,         -- JSON list of ids
    prompt_hash TEXT NOT NULL,
    policy_step INTEGER NOT NULL,
    hint TEXT NOT NULL,
    failure TEXT,                  -- NULL if the gate passed it
    report TEXT                    -- JSON GateReport
);
CREATE INDEX programs_by_id ON programs (id);
CREATE INDEX programs_by_step ON programs (step);
CREATE TABLE statistics (
    id TEXT NOT NULL,
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL,
    PRIMARY KEY (id, step, name)
) WITHOUT ROWID;
CREATE INDEX statistics_by_step ON statistics (step);
"""

_TABLES = ("programs", "statistics")

LEARNABLE_LOW, LEARNABLE_HIGH = 0.15, 0.85  # win rates from which something is learnt
NEGATIVE_LOW, NEGATIVE_HIGH = 0.1, 0.9
DIFFICULTY_BINS = 5

# Prioritised level replay (Jiang et al. 2021): P = (1 - rho) P_rank + rho P_stale with
# P_rank proportional to rank^(-1/beta).
REPLAY_RANK_TEMPERATURE = 0.3
REPLAY_STALENESS_WEIGHT = 0.3


@dataclasses.dataclass(frozen=True)
class MemoryConfig:
    """Attributes:
    capacity: how many programs are remembered.
    ranked_by_lower_bound: exemplars ranked by regret - SE (else by regret), and at most
      one per document and one per class name.
    cells: eviction from the fullest (skill, kind, difficulty) cell, lowest rank first
      (else the oldest of all first).
    """

    capacity: int
    ranked_by_lower_bound: bool
    cells: bool


PAPER = MemoryConfig(capacity=200, ranked_by_lower_bound=False, cells=False)
STRICT = MemoryConfig(capacity=200, ranked_by_lower_bound=True, cells=True)
PRESETS = {"paper": PAPER, "strict": STRICT}


class Memory:
    """The open store. One process writes it; others may read the file meanwhile."""

    def __init__(self, path: str | os.PathLike[str], config: MemoryConfig = STRICT):
        """Opens or creates the file.

        Raises:
          ValueError: the folder is missing, or the file is not an environment memory.
        """
        self.path = pathlib.Path(path)
        self.config = config
        self._members: list[_Member] | None = None
        if not self.path.parent.is_dir():
            raise ValueError(f"{self.path.parent} is no folder; create it before opening {self.path}")
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=30.0)
        try:
            self._open()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._db.close()
            raise ValueError(
                f"{self.path} cannot be opened as an environment memory ({error}); move it away or use another workdir"
            ) from error
        except ValueError:
            self._db.close()
            raise

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._current())

    def close(self) -> None:
        self._db.close()

    # ---- writing ----

    def add(self, step: int, records: Sequence[EnvironmentRecord]) -> None:
        """Stores the programs of one step; the valid ones enter the memory.

        A program already remembered is stored again but not remembered twice. What is
        then over the capacity is evicted.
        """
        remembered = {member.record.id for member in self._current()}
        with self._writing():
            for record in records:
                joins = record.report is not None and record.report.valid and record.id not in remembered
                if joins:
                    remembered.add(record.id)
                self._db.execute(
                    "INSERT INTO programs (step, member, id, source, class_name, kind, skill, document_id, parents,"
                    " prompt_hash, policy_step, hint, failure, report) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
                    (
                        step,
                        joins,
                        record.id,
                        _encodable(record.source),
                        _encodable(record.class_name),
                        record.kind,
                        _encodable(record.skill),
                        _encodable(record.document_id),
                        json.dumps(record.parents),
                        record.prompt_hash,
                        record.policy_step,
                        _encodable(record.hint),
                        record.report.failure if record.report else None,
                        json.dumps(to_jsonable(record.report)) if record.report else None,
                    ),
                )
                self._insert_statistics(step, record.id, record.statistics)
            self._evict(step)

    def record_statistics(self, step: int, statistics: Mapping[str, Mapping[str, float]]) -> None:
        """Stores what was measured in `step`: {environment id: {name: value}}.

        Names that selection reads: "regret", "regret_se", "win_rate". NaN is stored as
        missing. Writing the same (id, step, name) again replaces the value.
        """
        with self._writing():
            for environment, values in statistics.items():
                self._insert_statistics(step, environment, values)

    def rollback(self, step: int) -> None:
        """Restores the state after `step`: forgets everything written in later steps."""
        with self._writing():
            self._db.execute("DELETE FROM programs WHERE step > ?", (step,))
            self._db.execute("UPDATE programs SET evicted_step = NULL WHERE evicted_step > ?", (step,))
            self._db.execute("DELETE FROM statistics WHERE step > ?", (step,))

    def load(self, content: Mapping[str, Sequence[Sequence[Any]]]) -> None:
        """Takes over what another store's `dump` gave; this one must be empty."""
        with self._writing():
            for table, rows in content.items():
                for row in rows:
                    self._db.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)

    # ---- reading ----

    def dump(self) -> dict[str, list[list[Any]]]:
        """{table: rows}, as JSON values."""
        return {
            table: [list(row) for row in self._db.execute(f"SELECT * FROM {table}")] for table in _TABLES
        }

    def members(self) -> list[EnvironmentRecord]:
        """The remembered programs, oldest first, each with its latest statistics."""
        return [member.record for member in self._current()]

    def signatures(self) -> list[novel.Signature]:
        """What new programs are compared with, one per remembered program; only behaviours had to be stored."""
        return [novel.signature(record.source, record.report.behaviour) for record in self.members()]

    def programs(self) -> list[tuple[int, EnvironmentRecord]]:
        """(step, record) of every program ever stored, rejected ones too, in order of writing."""
        rows = self._db.execute(f"SELECT step, {_COLUMNS} FROM programs ORDER BY row").fetchall()
        statistics = self._latest_statistics(None)
        return [(row[0], _record(row[1:], statistics)) for row in rows]

    def get(self, environment: str) -> EnvironmentRecord | None:
        """The latest record of this id, remembered or not."""
        row = self._db.execute(
            f"SELECT {_COLUMNS} FROM programs WHERE id = ? ORDER BY row DESC LIMIT 1", (environment,)
        ).fetchone()
        return _record(row, self._latest_statistics([environment])) if row else None

    def history(self, environment: str) -> list[tuple[int, str, float | None]]:
        """(step, name, value) of everything measured on one environment, by step and name."""
        return self._db.execute(
            "SELECT step, name, value FROM statistics WHERE id = ? ORDER BY step, name", (environment,)
        ).fetchall()

    def digest(self) -> str:
        """Hex SHA-256 of all content but the wall times in gate reports: equal runs, equal digests."""
        sha = hashlib.sha256()
        for row in self._db.execute(f"SELECT row, step, member, evicted_step, {_COLUMNS} FROM programs ORDER BY row"):
            report = json.loads(row[-1]) if row[-1] else None
            for verdict in report["verdicts"] if report else ():
                del verdict["seconds"]
            sha.update(json.dumps([*row[:-1], report]).encode())
        for row in self._db.execute("SELECT id, step, name, value FROM statistics ORDER BY id, step, name"):
            sha.update(json.dumps(row).encode())
        return sha.hexdigest()

    # ---- selecting ----

    def exemplars(self, skill: str, n: int, rng: random.Random) -> list[EnvironmentRecord]:
        """Up to `n` good examples: same skill, learnable win rate, drawn from the top max(3n, 10)."""
        candidates = [member for member in self._current() if member.record.skill == skill and member.learnable]
        candidates.sort(key=self._rank, reverse=True)  # stable: the older first among equals
        if self.config.ranked_by_lower_bound:
            candidates = _one_per_document_and_class(candidates)
        top = candidates[: max(3 * n, 10)]
        return [member.record for member in rng.sample(top, min(n, len(top)))]

    def negatives(self, skill: str, n: int, rng: random.Random) -> list[str]:
        """Class names of up to `n` programs of the skill that were too easy or too hard."""
        names = {
            member.record.class_name: None
            for member in self._current()
            if member.record.skill == skill
            and member.win_rate is not None
            and not NEGATIVE_LOW <= member.win_rate <= NEGATIVE_HIGH
        }
        return rng.sample(list(names), min(n, len(names)))

    def replay(
        self, n: int, step: int, rng: random.Random, *, exclude: Collection[str] = ()
    ) -> list[EnvironmentRecord]:
        """Up to `n` distinct frontier environments: learnable, weighted by rank and staleness.

        Args:
          n: how many.
          step: the current step; staleness is the steps since the last measurement.
          rng: the only source of chance.
          exclude: ids not to draw, e.g. those in play.
        """
        pool = [member for member in self._current() if member.learnable and member.record.id not in exclude]
        pool.sort(key=self._rank, reverse=True)
        drawn = []
        while pool and len(drawn) < n:
            rank_weight = [(1.0 / (place + 1)) ** (1.0 / REPLAY_RANK_TEMPERATURE) for place in range(len(pool))]
            stale_weight = [float(max(0, step - member.measured_step)) for member in pool]
            rank_total, stale_total = sum(rank_weight), sum(stale_weight)
            rho = REPLAY_STALENESS_WEIGHT if stale_total > 0 else 0.0
            weight = [
                (1.0 - rho) * r / rank_total + (rho * s / stale_total if rho else 0.0)
                for r, s in zip(rank_weight, stale_weight, strict=True)
            ]
            index = rng.choices(range(len(pool)), weight)[0]
            drawn.append(pool.pop(index).record)
        return drawn

    # ---- inside ----

    def _open(self) -> None:
        application = self._db.execute("PRAGMA application_id").fetchone()[0]
        layout = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if tables == 0 and application == 0:
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.executescript(
                f"BEGIN; {_SCHEMA} PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_LAYOUT}; COMMIT;"
            )
        elif application != _APPLICATION_ID or layout != _LAYOUT:
            raise ValueError(
                f"{self.path} is a database of another program or version; move it away or use another workdir"
            )
        damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if damage != "ok":  # or a query would find it in the middle of the run
            raise sqlite3.DatabaseError(f"it is damaged: {' '.join(damage.split())}")
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = FULL")  # a checkpoint must never be newer than its memory

    def _writing(self) -> _Transaction:
        self._members = None
        return _Transaction(self._db, self.path)

    def _insert_statistics(self, step: int, environment: str, values: Mapping[str, float]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO statistics (id, step, name, value) VALUES (?,?,?,?)",
            [
                (environment, step, name, float(value) if math.isfinite(value) else None)
                for name, value in values.items()
            ],
        )

    def _latest_statistics(self, environments: Sequence[str] | None) -> dict[str, dict[str, tuple[float, int]]]:
        """{id: {name: (latest value, its step)}}; of all environments where None."""
        latest: dict[str, dict[str, tuple[float, int]]] = collections.defaultdict(dict)
        query = "SELECT id, name, value, step FROM statistics WHERE value IS NOT NULL"
        if environments is not None:
            query += " AND id IN (SELECT value FROM json_each(?))"
        for environment, name, value, step in self._db.execute(
            query + " ORDER BY step, name", () if environments is None else (json.dumps(list(environments)),)
        ):
            latest[environment][name] = (value, step)
        return latest

    def _current(self) -> list[_Member]:
        if self._members is None:
            rows = self._db.execute(
                f"SELECT row, {_COLUMNS} FROM programs WHERE member AND evicted_step IS NULL ORDER BY row"
            ).fetchall()
            statistics = self._latest_statistics([row[1] for row in rows])
            self._members = [
                _Member(
                    row[0],
                    _record(row[1:], statistics),
                    max((step for _, step in statistics.get(row[1], {}).values()), default=-1),
                )
                for row in rows
            ]
        return self._members

    def _rank(self, member: _Member) -> float:
        statistics = member.record.statistics
        regret = statistics.get("regret", -math.inf)
        return regret - statistics.get("regret_se", 0.0) if self.config.ranked_by_lower_bound else regret

    def _evict(self, step: int) -> None:
        self._members = None
        members = list(self._current())
        gone = []
        while len(members) > self.config.capacity:
            victim = self._victim(members)
            members.remove(victim)
            gone.append(victim.row)
        if gone:
            self._db.executemany("UPDATE programs SET evicted_step = ? WHERE row = ?", [(step, row) for row in gone])
        self._members = None

    def _victim(self, members: list[_Member]) -> _Member:
        """Whom to forget; `members` are oldest first.

        A program that nobody has played yet is spared while there is another choice:
        it has had no chance to show its worth.
        """
        if not self.config.cells:
            return members[0]
        measured = [member for member in members if member.win_rate is not None]
        if not measured:
            return members[0]
        cells: dict[tuple[str, str, int], list[_Member]] = collections.defaultdict(list)
        for member in measured:
            cells[member.cell].append(member)
        fullest = max(sorted(cells), key=lambda cell: len(cells[cell]))
        return min(cells[fullest], key=self._rank)  # the oldest of equals


@dataclasses.dataclass(frozen=True)
class _Member:
    row: int
    record: EnvironmentRecord
    measured_step: int

    @property
    def win_rate(self) -> float | None:
        return self.record.statistics.get("win_rate")

    @property
    def learnable(self) -> bool:
        return (
            self.win_rate is not None
            and LEARNABLE_LOW <= self.win_rate <= LEARNABLE_HIGH
            and "regret" in self.record.statistics
        )

    @property
    def cell(self) -> tuple[str, str, int]:
        difficulty = min(int(self.win_rate * DIFFICULTY_BINS), DIFFICULTY_BINS - 1)
        return self.record.skill, self.record.kind, difficulty


class _Transaction:
    """Commits all or nothing; a full or read-only disk becomes one clear OSError."""

    def __init__(self, db: sqlite3.Connection, path: pathlib.Path):
        self._db, self._path = db, path

    def __enter__(self) -> None:
        self._run("BEGIN IMMEDIATE")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        if kind is None:
            self._run("COMMIT")
            return
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")
        if isinstance(error, sqlite3.OperationalError):
            self._fail(error)

    def _run(self, statement: str) -> None:
        try:
            self._db.execute(statement)
        except sqlite3.OperationalError as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            self._fail(error)

    def _fail(self, error: sqlite3.OperationalError) -> None:
        number = errno.ENOSPC if "full" in str(error) else errno.EIO
        raise OSError(
            number, f"cannot be written ({error}); free space or close other writers", str(self._path)
        ) from error


_COLUMNS = (
    "id, source, class_name, kind, skill, document_id, parents, prompt_hash, policy_step, hint, report"  # report last
)


def _encodable(text: str) -> str:
    """The text with "?" for every lone surrogate: untrusted text may hold one, and it has no UTF-8 form."""
    return text.encode("utf-8", "replace").decode()


def _record(row: Sequence[Any], statistics: Mapping[str, Mapping[str, tuple[float, int]]]) -> EnvironmentRecord:
    (id_, source, class_name, kind, skill, document_id, parents, prompt_hash, policy_step, hint, report) = row
    return EnvironmentRecord(
        id=id_,
        source=source,
        class_name=class_name,
        kind=kind,
        skill=skill,
        document_id=document_id,
        parents=tuple(json.loads(parents)),
        prompt_hash=prompt_hash,
        policy_step=policy_step,
        hint=hint,
        report=_report(json.loads(report)) if report else None,
        statistics={name: value for name, (value, _) in sorted(statistics.get(id_, {}).items())},
    )


def _report(data: dict[str, Any]) -> GateReport:
    verdicts = tuple(CheckVerdict(**verdict) for verdict in data["verdicts"])
    return GateReport(verdicts, data["failure"], data["solvable"], data["behaviour"])


def _one_per_document_and_class(members: Sequence[_Member]) -> list[_Member]:
    """Keeps the best of each document and class name; programs without a document count singly."""
    documents: set[str] = set()
    classes: set[str] = set()
    kept = []
    for member in members:
        record = member.record
        if record.class_name in classes or (record.document_id and record.document_id in documents):
            continue
        classes.add(record.class_name)
        documents.add(record.document_id)
        kept.append(member)
    return kept
