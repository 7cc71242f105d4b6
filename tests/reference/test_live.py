"""Live against transformers: the golden figures are still what it computes, and it loads what we export.

    pip install -e '.[reference,test]' && python -m pytest tests/reference
"""

from __future__ import annotations

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import torch
import transformers

from spade_jax.policy import Decoder, huggingface, init_params, join_params, safetensors, split_adapters
from spade_jax.policy.config import LORA_TARGETS, LoraConfig
from spade_jax.policy.importing import open_model
from spade_jax.policy.weights import exported
from tests.policy import golden
from tests.reference import make_golden

pytestmark = pytest.mark.reference


@pytest.mark.parametrize("case", golden.cases())
def test_golden_figures_are_reproduced(case):
    stored = golden.load(case)
    assert stored["settings"] == json.loads(json.dumps(make_golden.settings_of(case)))
    shapes = make_golden.published_shapes(stored["settings"])
    assert {name: list(shape) for name, shape in shapes.items()} == stored["shapes"]
    logits, _ = make_golden.run(case, stored["settings"], shapes)
    np.testing.assert_allclose(logits, stored["logits"], atol=1e-5)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, tokens):
    hidden, _ = model.apply({"params": params}, tokens, jnp.arange(tokens.shape[1])[None])
    return model.apply({"params": params}, hidden, method="head")


@pytest.mark.parametrize("case", golden.cases())
def test_import_one_training_step_export_and_transformers_loads_it(case, tmp_path):
    stored = golden.load(case)
    golden.write_model(tmp_path, stored["settings"], stored["shapes"])
    lazy, config = open_model(tmp_path)
    model, params, tokens = Decoder(config), jax.tree.map(lambda p: jnp.asarray(p[...]), lazy), stored["tokens"]

    def loss(params):
        return optax.softmax_cross_entropy_with_integer_labels(logits_of(model, params, tokens)[0, :-1], tokens[0, 1:])

    optimizer = optax.adamw(1e-2)
    updates, _ = optimizer.update(jax.grad(lambda p: loss(p).mean())(params), optimizer.init(params), params)
    trained = optax.apply_updates(params, updates)

    ours = np.asarray(logits_of(model, trained, tokens)[0])
    np.testing.assert_allclose(ours, exported_logits(tmp_path / "out", config, trained, tokens), atol=1e-4, rtol=0)
    assert np.abs(ours - stored["logits"]).max() > 1e-2  # it did learn something


def exported_logits(out, config, params, tokens):
    """float32[T, V] of transformers with what we export."""
    out.mkdir()
    safetensors.write_folder(out, dict(exported(params, config)), "float32", 20_000)
    settings = huggingface.to_huggingface(config.merged, context=64, dtype="float32")
    (out / "config.json").write_text(json.dumps(settings))
    theirs, info = transformers.AutoModelForCausalLM.from_pretrained(
        out, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
    )
    assert not info["missing_keys"] and not info["unexpected_keys"]
    return theirs(torch.tensor(tokens, dtype=torch.long)).logits[0].detach().numpy()


@pytest.mark.parametrize("case", ["llama3", "qwen3_moe", "gemma3"])
def test_adapters_trained_for_a_step_are_merged_in_what_transformers_loads(case, tmp_path):
    stored = golden.load(case)
    golden.write_model(tmp_path, stored["settings"], stored["shapes"])
    lazy, plain = open_model(tmp_path)
    config = dataclasses.replace(plain, lora=LoraConfig(rank=4, alpha=8.0, targets=LORA_TARGETS))
    model, tokens = Decoder(config), stored["tokens"]
    base = jax.tree.map(lambda p: jnp.asarray(p[...]), lazy)
    adapters, _ = split_adapters(init_params(model, jax.random.key(0)))

    def loss(adapters):
        logits = logits_of(model, join_params(adapters, base), tokens)[0, :-1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[0, 1:]).mean()

    optimizer = optax.adamw(1e-2)
    updates, _ = optimizer.update(jax.grad(loss)(adapters), optimizer.init(adapters), adapters)
    trained = join_params(optax.apply_updates(adapters, updates), base)
    ours = np.asarray(logits_of(model, trained, tokens)[0])
    np.testing.assert_allclose(ours, exported_logits(tmp_path / "out", config, trained, tokens), atol=1e-4, rtol=0)
    assert np.abs(ours - stored["logits"]).max() > 1e-2
