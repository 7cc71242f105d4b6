"""Every architecture against transformers: logits by teacher forcing and with a cache, and gradients.

The files were made by tests/reference/make_golden.py; weights are written as a Hugging Face folder and imported, so
that names, transposes and config are under test too.
"""

from __future__ import annotations

import functools
import pathlib
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import Decoder, init_cache, split_layers, unrolled_params
from spade_jax.policy.importing import open_model
from spade_jax.policy.weights import exported
from tests.policy import golden

ATOL = 1e-4


WITH_GRADIENTS = [name for name in golden.cases() if golden.load(name)["gradients"]]


@functools.cache
def imported(name):
    """(stored figures, model, parameters)"""
    stored = golden.load(name)
    with tempfile.TemporaryDirectory() as folder:
        golden.write_model(pathlib.Path(folder), stored["settings"], stored["shapes"])
        lazy, config = open_model(folder)
        return stored, Decoder(config), jax.tree.map(lambda p: jnp.asarray(p[...]), lazy)


@pytest.fixture(params=golden.cases())
def case(request):
    return imported(request.param)


@functools.partial(jax.jit, static_argnums=0)
def logits_of(model, params, tokens, positions, cache=None):
    hidden, cache = model.apply({"params": params}, tokens, positions, cache)
    return model.apply({"params": params}, hidden, method="head"), cache


def test_there_is_a_case_for_every_family():
    types = {golden.load(name)["settings"]["model_type"] for name in golden.cases()}
    assert types == {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text"}


def test_teacher_forcing(case):
    stored, model, params = case
    positions = jnp.arange(golden.TOKENS)[None]
    logits, _ = logits_of(model, params, stored["tokens"], positions)
    np.testing.assert_allclose(logits[0], stored["logits"], atol=ATOL, rtol=0)


def test_prefill_in_pieces_and_decode(case):
    """Pieces of 8 tokens, and single ones after the first: windows of 5 and 6 begin and end within and between."""
    stored, model, params = case
    caches, pieces = [init_cache(model.config, 1, golden.TOKENS + 3)], []
    for begin in range(0, golden.TOKENS, 8):
        at = jnp.arange(begin, begin + 8)[None]
        logits, cache = logits_of(model, params, stored["tokens"][:, begin : begin + 8], at, caches[-1])
        pieces.append(logits[0])
        caches.append(cache)
    np.testing.assert_allclose(np.concatenate(pieces), stored["logits"], atol=ATOL, rtol=0)
    decoder, own = Decoder(model.config, unrolled=True), unrolled_params(params, model.config.num_layers)
    cache = split_layers(caches[1])
    for t in range(8, golden.TOKENS):
        logits, cache = logits_of(decoder, own, stored["tokens"][:, t : t + 1], jnp.array([[t]]), cache)
        np.testing.assert_allclose(logits[0, 0], stored["logits"][t], atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", ["mistral", "gemma2"])  # windows in all layers, in some
def test_windows_in_chunks_equal_those_of_the_cache(name):
    """Attention without a cache works in chunks of 64 queries, which the golden figures are too short for."""
    stored, model, params = imported(name)
    tokens = np.tile(stored["tokens"], 6)
    at = jnp.arange(tokens.shape[1])[None]
    whole, _ = logits_of(model, params, tokens, at)
    cached, _ = logits_of(model, params, tokens, at, init_cache(model.config, 1, tokens.shape[1]))
    np.testing.assert_allclose(whole, cached, atol=ATOL, rtol=0)


@pytest.mark.parametrize("name", WITH_GRADIENTS)
def test_gradients(name):
    stored, model, params = imported(name)
    tokens = stored["tokens"]

    @jax.jit
    @jax.grad
    def gradient(params):
        logits, _ = logits_of(model, params, tokens, jnp.arange(golden.TOKENS)[None])
        logp = jax.nn.log_softmax(logits[0, :-1])
        return -jnp.mean(jnp.take_along_axis(logp, tokens[0, 1:, None], axis=-1))

    found = {name: golden.projection(name, np.asarray(g)) for name, g in exported(gradient(params), model.config)}
    assert found.keys() == stored["gradients"].keys()
    for tensor, (norm, along) in stored["gradients"].items():
        expected = pytest.approx(norm, rel=1e-4, abs=1e-7), pytest.approx(along, rel=1e-3, abs=1e-5)
        assert found[tensor] == expected, tensor
