"""Files that the config names and that turn out to be something else: one sentence each, never a traceback."""

from __future__ import annotations

import json
import os
import pathlib
import shutil

import jax
import numpy as np
import pytest

from configs import spade_tiny
from spade_jax import compose
from spade_jax.policy import Decoder, DecoderConfig, huggingface, init_params, safetensors
from spade_jax.policy.weights import exported
from spade_jax.runtime.errors import RunError, UsageError
from spade_jax.runtime.presets import resolve_preset


def _array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(3))


def _other_config(path):
    with path.open("wb") as file:
        np.savez(file, **{"config.json": np.array('{"foo": 1}')})


def _cut(path):
    path.write_bytes((compose.ASSETS / "tiny" / compose.POLICY_FILE).read_bytes()[:100_000])


def _damaged(path):
    data = bytearray((compose.ASSETS / "tiny" / compose.POLICY_FILE).read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)


def _empty(path):
    path.touch()


@pytest.mark.parametrize("write", [_array, _other_config, _cut, _damaged, _empty])
def test_policy_that_is_none(tmp_path, write):
    config = resolve_preset(spade_tiny.get_config())
    config.policy.init = str(tmp_path / "policy.npz")
    write(tmp_path / "policy.npz")
    with pytest.raises(UsageError, match=r"policy.init=.*policy.npz cannot be read .*; use tiny, spiral, scratch,"):
        compose.policy(config, compose.chat_template(config))


def test_tokenizer_that_is_none(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.tokens.tokenizer = str(tmp_path / "t.model")
    (tmp_path / "t.model").write_text("no model")
    with pytest.raises(UsageError, match=r"tokens.tokenizer=.*t.model cannot be used .*; use tiny"):
        compose.chat_template(config)


def test_rows_of_an_embedding_that_no_token_uses_belong_to_a_published_tokenizer(tmp_path):
    """Ours has no text for what such a row's logit draws: the run would end in its first rollout."""
    published = pathlib.Path(__file__).parent / "data" / "tokenizers" / "chatml"
    folder = tmp_path / "model"
    shutil.copytree(published, folder)
    config = resolve_preset(spade_tiny.get_config())
    config.policy.init, config.tokens.tokenizer = str(folder), str(folder)
    template = compose.chat_template(config)
    vocabulary = max(template.tokenizer.vocab_size, 2048) + 5
    shape = DecoderConfig(
        vocab_size=vocabulary, embed_dim=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=8
    )
    params = init_params(Decoder(shape), jax.random.key(0))
    safetensors.write_folder(folder, dict(exported(params, shape)), "float32", 1 << 30)
    settings = huggingface.to_huggingface(shape, context=80, dtype="float32")
    (folder / "config.json").write_text(json.dumps(settings))
    assert compose.policy(config, template)[0].config.vocab_size == vocabulary
    assert template.tokenizer.decode([vocabulary - 1]) == ""
    config.tokens.tokenizer = "tiny"
    message = f"has a vocabulary of {vocabulary}, tokens.tokenizer=tiny one of 2048; give a pair that belongs together"
    with pytest.raises(UsageError, match=message):
        compose.policy(config, compose.chat_template(config))


def test_corpus_that_is_a_pipe(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path / "pipe.jsonl")
    os.mkfifo(config.corpus.path)  # opening it would wait for ever
    with pytest.raises(UsageError, match="neither a file nor a folder"):
        compose.documents(config)


def test_corpus_that_was_edited_under_a_run(tmp_path, capsys):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path / "corpus.jsonl")
    file = tmp_path / "corpus.jsonl"
    file.write_text('{"text": "one"}\n{"text": "two"}\n{"text": "three"}\n')
    before = compose.documents(config)
    _, saved = before.draw(before.start())
    assert compose.cursor(config, compose.documents(config), saved, before.fingerprint) == saved

    # As many documents as before, of which one is another; the same in another order; fewer.
    for text in ("one two four", "two one three", "one two"):
        file.write_text("".join(f'{{"text": "{word}"}}\n' for word in text.split()))
        after = compose.documents(config)
        with pytest.raises(UsageError, match=r"corpus.jsonl are not those that this run began with; restore them, "):
            compose.cursor(config, after, saved, before.fingerprint)
        config.run.allow_config_change = True
        assert compose.cursor(config, after, saved, before.fingerprint) == after.start()
        assert capsys.readouterr().out.startswith("warning: corpus.path: the documents of ")
        config.run.allow_config_change = False


def test_mixture_of_sources_by_weight_and_its_exact_resume(tmp_path):
    (tmp_path / "z.txt").write_text("zzz")
    (tmp_path / "a").mkdir()
    for i in range(9):
        (tmp_path / "a" / f"{i}.txt").write_text(f"word{i}")
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = f"{tmp_path}/z.txt, {tmp_path}/a"
    config.corpus.weights = (1, 3.0)

    def draw(count, cursor, documents):
        drawn = []
        for _ in range(count):
            document, cursor = documents.draw(cursor)
            drawn.append(document.text)
        return drawn, cursor

    documents = compose.documents(config)
    whole, _ = draw(20, documents.start(), documents)
    assert whole.count("zzz") == 5
    head, cursor = draw(7, documents.start(), documents)
    again = compose.documents(config)
    cursor = compose.cursor(config, again, json.loads(json.dumps(cursor)), documents.fingerprint)
    assert head + draw(13, cursor, again)[0] == whole

    config.corpus.weights = ()
    equal = compose.documents(config)
    assert draw(20, equal.start(), equal)[0].count("zzz") == 10


def test_cache_that_no_machine_holds():
    """2 (keys and values) x 5 layers x 10^9 slots x 2 heads x 32 wide x 1024 tokens x 4 bytes = 2,441,406 GiB"""
    config = resolve_preset(spade_tiny.get_config())
    config.sampler.slots = 10**9
    model, _ = compose.policy(config, compose.chat_template(config))
    with pytest.raises(UsageError, match=r"sampler.slots=1000000000 of .* need a cache of 2441406.2 GiB, but"):
        compose.mesh(config, model)


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
