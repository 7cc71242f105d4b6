"""Everything that a report is made from, read from a workdir that may still be written to."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import pathlib
import sqlite3
import tempfile
import zlib
from typing import Any

import numpy as np

from spade_jax import structs
from spade_jax.designer.memory import Memory
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.metrics import read_scalars
from spade_jax.runtime.transcripts import read_transcripts
from spade_jax.runtime.workdir import CONFIG_FILE, flatten

# Transcript files that are read, evenly from first to last: a long run keeps thousands.
MAX_TRANSCRIPT_FILES = 200

Series = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Exchange:
    """One turn of a transcript, texts untrusted.

    Attributes:
      observation: what the agent was shown.
      response: what it wrote.
      action: the command parsed from it.
      reward: the environment's reward after the turn.
    """

    observation: str
    response: str
    action: str
    reward: float


@dataclasses.dataclass(frozen=True)
class Play:
    """One kept episode.

    Attributes:
      step: the step it was played in.
      seed_index: which of the environment's paired seeds.
      turns: the exchanges, in order.
      episode_return: return in [-1, 1].
      status: one of `structs`' statuses.
      reason: why it is void or truncated, else "".
    """

    step: int
    seed_index: int
    turns: tuple[Exchange, ...]
    episode_return: float
    status: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Run:
    """A workdir's content.

    Attributes:
      workdir: the directory.
      config: {"a.b": value} of the resolved config; {} where it cannot be read.
      series: {tag: (int64[N] steps, float64[N] values)}.
      programs: (step, record) of every program ever written, in order.
      plays: {environment id: {arm: one episode}}, both arms on the same seed where possible.
      problems: {"config" | "programs" | "transcripts": sentence} for what could not be read.
    """

    workdir: pathlib.Path
    config: dict[str, Any]
    series: dict[str, Series]
    programs: list[tuple[int, structs.EnvironmentRecord]]
    plays: dict[str, dict[str, Play]]
    problems: dict[str, str]


def read_run(workdir: pathlib.Path) -> Run:
    """Reads what there is; what is missing or damaged becomes an entry of `problems`.

    Raises:
      UsageError: `workdir` is not the directory of a run.
    """
    if not workdir.is_dir():
        raise UsageError(f"--workdir={workdir} is not a directory; give the folder that a training run wrote")
    if not (workdir / "metrics").is_dir() and not (workdir / "environments.sqlite").is_file():
        raise UsageError(
            f"--workdir={workdir} holds no run (neither metrics/ nor environments.sqlite); "
            "give the folder that a training run wrote"
        )
    problems: dict[str, str] = {}
    config: dict[str, Any] = {}
    try:
        config = flatten(json.loads((workdir / CONFIG_FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        problems["config"] = f"This workdir has no {CONFIG_FILE}."
    except (OSError, ValueError, AttributeError) as error:
        problems["config"] = f"{CONFIG_FILE} cannot be read: {error}."
    programs: list[tuple[int, structs.EnvironmentRecord]] = []
    try:
        programs = _read_programs(workdir / "environments.sqlite")
    except FileNotFoundError:
        problems["programs"] = "This workdir has no environments.sqlite."
    except (OSError, ValueError, KeyError, sqlite3.Error) as error:
        problems["programs"] = f"environments.sqlite cannot be read: {error}."
    plays, unreadable = _read_plays(workdir / "transcripts")
    if unreadable:
        problems["transcripts"] = f"Transcripts that could not be read: {', '.join(unreadable)}."
    return Run(workdir, config, read_scalars(workdir), programs, plays, problems)


def _read_programs(path: pathlib.Path) -> list[tuple[int, structs.EnvironmentRecord]]:
    """All programs, from a snapshot: a run that still writes is neither blocked nor written to."""
    if not path.is_file():
        raise FileNotFoundError(path)
    # Without a write-ahead log nobody has the file open. It is then read as it lies: SQLite
    # would otherwise create its side files, which a directory of somebody else refuses.
    lies_still = not path.with_name(path.name + "-wal").exists()
    uri = f"{path.resolve().as_uri()}?mode=ro{'&immutable=1' if lies_still else ''}"
    with tempfile.TemporaryDirectory() as folder:
        snapshot = pathlib.Path(folder) / path.name
        with (
            contextlib.closing(sqlite3.connect(uri, uri=True, timeout=30.0)) as source,
            contextlib.closing(sqlite3.connect(snapshot)) as copy,
        ):
            source.backup(copy)
        with Memory(snapshot) as memory:
            return memory.programs()


def _read_plays(folder: pathlib.Path) -> tuple[dict[str, dict[str, Play]], list[str]]:
    """The first pair of episodes of each environment, and the names of unreadable files.

    A pair is of one step and one seed, neither episode void; failing that, what comes
    first of each arm.
    """
    paths = sorted(folder.glob("step_*.jsonl.gz"))
    if len(paths) > MAX_TRANSCRIPT_FILES:
        paths = [paths[i] for i in np.linspace(0, len(paths) - 1, MAX_TRANSCRIPT_FILES).round().astype(int)]
    paired: dict[str, dict[str, Play]] = {}
    first: dict[str, dict[str, Play]] = {}
    unreadable = []
    for path in paths:
        here: dict[tuple[str, int], dict[str, Play]] = {}
        try:
            step = int(path.name.removeprefix("step_").split(".")[0])
            for episode in read_transcripts(path):
                if episode["role"] == structs.AGENT and episode["environment_id"] not in paired:
                    key = episode["environment_id"], episode["seed_index"]
                    here.setdefault(key, {}).setdefault(episode["arm"], _play(step, episode))
        except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError):
            unreadable.append(path.name)
            continue
        for (environment, _), arms in here.items():
            if len(arms) == 2 and all(play.status != structs.VOID for play in arms.values()):
                paired.setdefault(environment, arms)
            for arm, play in arms.items():
                first.setdefault(environment, {}).setdefault(arm, play)
    return first | paired, unreadable


def _play(step: int, episode: dict[str, Any]) -> Play:
    return Play(
        step=step,
        seed_index=int(episode["seed_index"]),
        turns=tuple(
            Exchange(str(turn["observation"]), str(turn["response"]), str(turn["action"]), float(turn["reward"]))
            for turn in episode["turns"]
        ),
        episode_return=float(episode["episode_return"]),
        status=str(episode["status"]),
        reason=str(episode["reason"]),
    )
