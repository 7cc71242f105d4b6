"""Files that the config names and that turn out to be something else: one sentence each, never a traceback."""

from __future__ import annotations

import os

import numpy as np
import pytest

from configs import spade_tiny
from spade_jax import compose
from spade_jax.runtime.errors import RunError, UsageError
from spade_jax.runtime.presets import resolve_preset


def _array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _other_config(path):
    with path.open("wb") as file:
        np.savez(file, **{"config.json": np.array('{"foo": 1}')})


def _cut(path):
    path.write_bytes((compose.EMBEDDED / compose.POLICY_FILE).read_bytes()[:100_000])


def _damaged(path):
    data = bytearray((compose.EMBEDDED / compose.POLICY_FILE).read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def _empty(path):
    path.touch()


@pytest.mark.parametrize("write", [_array, _other_config, _cut, _damaged, _empty])
def test_policy_that_is_none(tmp_path, write):
    config = resolve_preset(spade_tiny.get_config())
    config.policy.init = str(tmp_path / "policy.npz")
    write(tmp_path / "policy.npz")
    with pytest.raises(UsageError, match=r"policy.init=.*policy.npz cannot be read .*; use tiny, scratch, or an .npz"):
        compose.policy(config, compose.chat_template(config))


def test_tokenizer_that_is_none(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.tokens.tokenizer = str(tmp_path / "t.model")
    (tmp_path / "t.model").write_text("no model")
    with pytest.raises(UsageError, match=r"tokens.tokenizer=.*t.model cannot be used .*; use tiny"):
        compose.chat_template(config)


def test_corpus_that_is_a_pipe(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path / "pipe.jsonl")
    os.mkfifo(config.corpus.path)  # opening it would wait for ever
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        compose.documents(config)


def test_corpus_that_shrank_under_a_run(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path / "corpus.txt")
    (tmp_path / "corpus.txt").write_text("one document\n")
    documents = compose.documents(config)
    assert compose.cursor(config, documents, documents.start()) == documents.start()
    for saved in ({config.corpus.path: {"epoch": 0, "index": 7}}, {"builtin": {"epoch": 0, "index": 0}}):
        with pytest.raises(UsageError, match="is not what this run began with"):
            compose.cursor(config, documents, saved)


def test_store_that_lacks_what_the_checkpoint_plays(tmp_path):
    with (
        compose.memory(resolve_preset(spade_tiny.get_config()), str(tmp_path)) as memory,
        pytest.raises(RunError, match=r"environments.sqlite lacks 1 program\(s\) that the newest checkpoint plays"),
    ):
        compose.in_play(memory, [["0" * 64, "hint"]])


def test_a_layer_that_does_not_exist_cannot_be_required():
    config = resolve_preset(spade_tiny.get_config())
    config.sandbox.required = ("descriptors", "wall")
    with pytest.raises(UsageError, match="sandbox layer 'wall' is unknown; use some of descriptors, session"):
        compose.sandbox_pool(config)
