"""Sharded initialisation, the optimiser's schedule and mask, the mesh table's errors."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from spade_jax.learner import partitioning
from spade_jax.learner.state import (
    OptimizerConfig,
    abstract_params,
    decay_mask,
    init_state,
    make_optimizer,
    make_schedule,
    param_shardings,
)
from spade_jax.policy import Decoder, DecoderConfig, init_params

MODEL = Decoder(
    DecoderConfig(vocab_size=16, embed_dim=8, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=4, mlp_dim=12)
)


def test_state_leaves_are_global_and_reproducible():
    mesh, optimizer = partitioning.make_mesh(), make_optimizer(OptimizerConfig(), MODEL)
    a = init_state(MODEL, optimizer, mesh, seed=3, num_baselines=5)
    b = init_state(MODEL, optimizer, mesh, seed=3, num_baselines=5)
    assert all(isinstance(x, jax.Array) and x.committed for x in jax.tree.leaves(a))
    assert (a.step, a.baselines.shape) == (0, (5,))
    for x, y in zip(jax.tree.leaves(a.params), jax.tree.leaves(b.params), strict=True):
        np.testing.assert_array_equal(x, y)
    other = init_state(MODEL, optimizer, mesh, seed=4)
    assert not np.array_equal(a.params["embedding"], other.params["embedding"])


def test_state_from_given_params():
    mesh, optimizer = partitioning.make_mesh(), make_optimizer(OptimizerConfig(), MODEL)
    given = jax.device_get(init_params(MODEL, jax.random.key(9)))
    state = init_state(MODEL, optimizer, mesh, seed=0, params=jax.tree.map(np.float16, given))
    np.testing.assert_allclose(state.params["embedding"], given["embedding"], atol=1e-4)
    assert state.params["embedding"].dtype == np.float32
    given["embedding"] = given["embedding"][:-1]
    with pytest.raises(ValueError, match=r"'embedding'.*\(15, 8\).*\(16, 8\)"):
        init_state(MODEL, optimizer, mesh, seed=0, params=given)


def test_decay_spares_norms():
    flat = {jax.tree_util.keystr(k): v for k, v in jax.tree_util.tree_leaves_with_path(decay_mask(MODEL))}
    assert {v for k, v in flat.items() if "scale" in k} == {False}
    assert {v for k, v in flat.items() if "scale" not in k} == {True}


def test_schedules():
    constant = make_schedule(OptimizerConfig(learning_rate=1.0, warmup_steps=4))
    np.testing.assert_allclose([constant(i) for i in range(6)], [0.25, 0.5, 0.75, 1, 1, 1], atol=1e-6)
    cosine = make_schedule(
        OptimizerConfig(learning_rate=1.0, schedule="cosine", warmup_steps=2, total_steps=6, final_fraction=0.1)
    )
    np.testing.assert_allclose([cosine(i) for i in (0, 1, 2, 4, 6, 9)], [0.5, 1, 1, 0.55, 0.1, 0.1], atol=1e-6)
    with pytest.raises(ValueError, match="optimizer.schedule='linear'"):
        make_schedule(OptimizerConfig(schedule="linear"))
    with pytest.raises(ValueError, match="optimizer.total_steps=3 leaves no step"):
        make_schedule(OptimizerConfig(schedule="cosine", warmup_steps=3, total_steps=3))


def test_rules():
    assert partitioning.mesh_spec(P("vocab", "embed")) == P("tensor", "fsdp")
    assert partitioning.mesh_spec(P("batch", "embed")) == P(("data", "fsdp", "expert"), None)  # fsdp is taken
    assert partitioning.mesh_spec(P("layers", None, "mlp")) == P(None, None, "tensor")
    with pytest.raises(ValueError, match="logical axis 'window' has no sharding rule"):
        partitioning.mesh_spec(P("window"))


def test_indivisible_dimension_is_named():
    mesh = jax.sharding.AbstractMesh((1, 1, 3, 1), partitioning.AXES)
    with pytest.raises(ValueError, match=r"mesh.tensor=3 does not divide dimension 0 \(size 16, logical axis 'vocab'"):
        partitioning.tree_shardings({"embedding": P("vocab", "embed")}, {"embedding": np.zeros((16, 8))}, mesh)
    assert param_shardings(MODEL, partitioning.make_mesh())["embedding"].spec == P("tensor", "fsdp")
    assert abstract_params(MODEL)["embedding"].shape == (16, 8)


def test_impossible_mesh():
    with pytest.raises(ValueError, match="mesh.fsdp=3, .* cannot be laid over"):
        partitioning.make_mesh(fsdp=3, data=1)
