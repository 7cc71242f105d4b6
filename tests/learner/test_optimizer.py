"""Muon beside AdamW: which weights it orthogonalises, how its moments are sharded, and that it learns."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from spade_jax.learner import partitioning, supervised
from spade_jax.learner import state as state_lib
from spade_jax.policy import Decoder, DecoderConfig, logical_specs

MODEL = Decoder(
    DecoderConfig(vocab_size=32, embed_dim=16, num_layers=2, num_heads=2, num_kv_heads=1, head_dim=8, mlp_dim=32)
)


def test_matrices_of_the_layers_are_split_into_input_and_output_axes():
    axes = jax.tree.map(state_lib._matrix_axes, logical_specs(MODEL), is_leaf=lambda x: isinstance(x, PartitionSpec))
    attention, mlp = axes["layers"]["attention"], axes["layers"]["mlp"]
    assert (attention["q"].reduction_axis, attention["q"].output_axis) == ((1,), (2, 3))
    assert (attention["o"].reduction_axis, attention["o"].output_axis) == ((1, 2), (3,))
    assert (mlp["down"].reduction_axis, mlp["down"].output_axis) == ((1,), (2,))
    assert axes["embedding"] is None
    assert axes["layers"]["mlp_norm"]["scale"] is None


def test_the_update_of_a_matrix_is_orthogonal_up_to_scale():
    """With beta 0.95 and Nesterov the first step's momentum is the gradient's direction: all singular values alike."""
    optimizer = state_lib.make_optimizer(
        state_lib.OptimizerConfig(kind="muon", learning_rate=1.0, weight_decay=0.0, clip_norm=0.0), MODEL
    )
    params = state_lib.init_state(MODEL, optimizer, partitioning.make_mesh(), seed=0).params
    grads = jax.tree.map(lambda p: jax.random.normal(jax.random.key(1), p.shape), params)
    updates, _ = optimizer.update(grads, optimizer.init(params), params)
    for layer in np.asarray(updates["layers"]["mlp"]["gate"]):
        singular = np.linalg.svd(layer, compute_uv=False)
        assert singular.max() / singular.min() < 2.5  # five Newton-Schulz steps land in about [.7, 1.2]


@pytest.mark.parametrize("kind", ["adamw", "muon"])
def test_both_learn_a_constant_sequence(kind):
    mesh = partitioning.make_mesh()
    optimizer = state_lib.make_optimizer(state_lib.OptimizerConfig(kind=kind, learning_rate=1e-2), MODEL)
    state = state_lib.init_state(MODEL, optimizer, mesh, seed=0)
    step = supervised.make_supervised_step(MODEL, optimizer, mesh)
    tokens, weights = np.tile(np.arange(16), (8, 1)), np.ones((8, 16))
    losses = []
    for _ in range(60):
        state, metrics = step(state, tokens, weights)
        losses.append(float(metrics["loss"]))
    assert losses[0] > 3.0
    assert losses[-1] < 0.5


def test_an_unknown_kind_is_named():
    with pytest.raises(ValueError, match="optimizer.kind='sgd' is unknown"):
        state_lib.make_optimizer(state_lib.OptimizerConfig(kind="sgd"), MODEL)
