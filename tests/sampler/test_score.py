"""Scores of continuations are the log-probs that the sampler records for the same tokens."""

from __future__ import annotations

import jax
import numpy as np

from spade_jax.policy import Decoder, DecoderConfig, init_params
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sampler.score import score

SHAPE = DecoderConfig(vocab_size=40, embed_dim=32, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=16, mlp_dim=64)


def test_score_is_what_the_sampler_recorded():
    model = Decoder(SHAPE)
    params = jax.jit(lambda key: init_params(model, key))(jax.random.key(0))
    engine = Engine(model, params, slots=3, context=64, block=4, stop_token=0, run_seed=0)
    rng, pairs, recorded = np.random.default_rng(0), [], []
    prompts = {}
    for i in range(5):
        handle = engine.open(f"{i}", SamplingConfig(temperature=0.7))
        prompts[handle] = rng.integers(1, 40, 3 + 4 * i).astype(np.int32)
        engine.submit(handle, prompts[handle], 9)
    while engine.busy:
        for response in engine.step():
            pairs.append((prompts[response.handle], response.tokens))
            recorded.append(response.logp.sum())
            engine.close(response.handle)
    np.testing.assert_allclose(score(model, params, pairs, 0.7), recorded, atol=2e-4)
    np.testing.assert_allclose(score(model, params, pairs, 0.7, rows=2), recorded, atol=2e-4)
    assert score(model, params, [], 1.0).shape == (0,)


def test_all_single_tokens_share_out_one():
    model = Decoder(SHAPE)
    params = jax.jit(lambda key: init_params(model, key))(jax.random.key(1))
    pairs = [(np.array([3, 5, 7]), np.array([token])) for token in range(40)]
    np.testing.assert_allclose(np.exp(score(model, params, pairs, 1.0)).sum(), 1.0, rtol=1e-5)
