"""What was said, one gzipped JSON-lines file per step: `transcripts/step_000012.jsonl.gz`."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from spade_jax.runtime.files import replacing
from spade_jax.structs import to_jsonable


def transcript_path(directory: str | os.PathLike[str], step: int) -> Path:
    return Path(directory) / f"step_{step:06d}.jsonl.gz"


def write_transcripts(directory: str | os.PathLike[str], step: int, records: Iterable[Any]) -> Path:
    """Writes one step's records, structs or JSON values, one per line.

    The file appears whole or not at all, and a step that is played again after a
    resume replaces its file. No time stamp is stored: equal records, equal bytes.
    """
    path = transcript_path(directory, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        replacing(path) as partial,
        open(partial, "wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as stream,
    ):
        for record in records:
            stream.write(json.dumps(to_jsonable(record), ensure_ascii=False).encode("utf-8", "replace") + b"\n")
    return path


def read_transcripts(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Yields the records of one file in the order written."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
