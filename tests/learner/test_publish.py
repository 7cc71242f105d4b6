"""Weights for the sampler in a single process; several are tested with the trainer (tests/multihost)."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

from spade_jax.learner import partitioning, publish
from spade_jax.learner import state as state_lib
from spade_jax.learner.state import OptimizerConfig
from spade_jax.policy import Decoder, DecoderConfig

CONFIG = DecoderConfig(vocab_size=40, embed_dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=32)


@functools.partial(jax.jit, donate_argnums=0)
def consume(params):
    """What an update does to the learner's weights."""
    return jax.tree.map(lambda p: p * 0 + 7, params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", None])
def test_what_is_to_outlive_the_update_does(dtype):
    model, mesh = Decoder(CONFIG), partitioning.make_mesh()
    optimizer = state_lib.make_optimizer(OptimizerConfig(), model)
    # Twice: what the host has a view of cannot be consumed.
    params, before = (state_lib.init_state(model, optimizer, mesh, seed=0).params for _ in range(2))
    published = publish.make_publish(model, mesh, dtype, outlives_update=True)(params)
    consume(params)
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(params))
    for kept, was in zip(jax.tree.leaves(published), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(kept, was.astype(kept.dtype))
    if dtype == "bfloat16":
        assert published["embedding"].dtype == dtype


def test_what_need_not_is_not_copied():
    model, mesh = Decoder(CONFIG), partitioning.make_mesh()
    params = {"embedding": object()}
    assert publish.make_publish(model, mesh, "float32")(params) is params
