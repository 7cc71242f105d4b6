"""SmolLM2-135M-Instruct from its GGUF file against transformers (tests/reference/make_smollm2.py)."""

from __future__ import annotations

import functools
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import spade_smollm2_135m
from spade_jax import compose
from spade_jax.runtime.presets import resolve_preset
from spade_jax.sampler import Engine, SamplingConfig

EVERY = 61  # as in the script
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def figures():
    with np.load(pathlib.Path(__file__).parents[1] / "data" / "smollm2.npz") as store:
        return dict(store)


@pytest.fixture(scope="module")
def loaded():
    config = resolve_preset(spade_smollm2_135m.get_config())
    template = compose.chat_template(config)
    model, params = compose.policy(config, template)
    return template, model, jax.tree.map(lambda p: jnp.asarray(p[...]), params)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, tokens):
    hidden, _ = model.apply({"params": params}, tokens, jnp.arange(tokens.shape[1])[None])
    return model.apply({"params": params}, hidden, method="head")[0]


def test_logits(figures, loaded):
    _, model, params = loaded
    logits = np.asarray(logits_of(model, params, figures["tokens"][None]))
    np.testing.assert_allclose(logits[:, ::EVERY], figures["logits"], atol=5e-4, rtol=0)
    np.testing.assert_array_equal(logits.argmax(-1), figures["top"])


def test_tokens_and_template(figures, loaded):
    template, _, _ = loaded
    prompt = str(figures["prompt"])
    assert template.tokenizer.encode(prompt) == figures["tokens"].tolist()
    assert template.prompt([("user", prompt)]) == figures["chat"].tolist()


def test_greedy_text(figures, loaded):
    template, model, params = loaded
    engine = Engine(model, params, slots=2, context=64, block=8, stop_token=template.tokenizer.end_id, run_seed=0)
    engine.submit(engine.open("greedy", SamplingConfig(temperature=0)), figures["tokens"], len(figures["greedy"]))
    responses = []
    while engine.busy:
        responses += engine.step()
    assert responses[0].tokens.tolist() == figures["greedy"].tolist()
    assert template.tokenizer.decode(responses[0].tokens) == str(figures["text"])
