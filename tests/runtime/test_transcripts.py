from __future__ import annotations

import numpy as np
import pytest

from spade_jax.runtime.transcripts import read_transcripts, write_transcripts
from spade_jax.structs import Episode, Turn


def _episode(text: str) -> Episode:
    turn = Turn(text, np.array([1, 2], np.int32), np.array([3], np.int32), np.array([-0.5], np.float32),
                np.array([0], np.int32), "r", "a", 1.0)  # fmt: skip
    return Episode("env", "agent", "plain", 0, 7, (turn,), 1.0, "success")


def test_round_trip_and_equal_bytes(tmp_path):
    a = write_transcripts(tmp_path / "t", 12, [_episode("héllo\n"), {"x": 1}])
    assert a.name == "step_000012.jsonl.gz"
    records = list(read_transcripts(a))
    assert records[0]["turns"][0]["observation"] == "héllo\n"
    assert records[0]["turns"][0]["prompt_tokens"] == [1, 2]
    assert records[1] == {"x": 1}
    b = write_transcripts(tmp_path / "other", 12, [_episode("héllo\n"), {"x": 1}])
    assert a.read_bytes() == b.read_bytes()


def test_failure_leaves_the_old_file_and_no_partial_one(tmp_path):
    path = write_transcripts(tmp_path, 0, [{"x": 1}])

    def records():
        yield {"x": 2}
        raise RuntimeError("producer died")

    with pytest.raises(RuntimeError):
        write_transcripts(tmp_path, 0, records())
    assert list(read_transcripts(path)) == [{"x": 1}]
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_lone_surrogates_of_a_policy_do_not_stop_the_run(tmp_path):
    assert list(read_transcripts(write_transcripts(tmp_path, 0, [{"x": "\udc80"}]))) == [{"x": "?"}]
