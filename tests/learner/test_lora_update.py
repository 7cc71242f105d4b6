"""An update of adapters: they alone move, the optimiser knows them alone, and a checkpoint goes on in the same bits."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from spade_jax.learner import partitioning
from spade_jax.learner.batch import BucketConfig, pack
from spade_jax.learner.objective import ObjectiveConfig
from spade_jax.learner.state import OptimizerConfig, init_state, make_optimizer, split_trained
from spade_jax.learner.step import UpdateConfig, make_update
from spade_jax.policy import Decoder, DecoderConfig, count_params, init_params, merge_adapters, split_adapters
from spade_jax.policy.config import LORA_TARGETS, LoraConfig
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.structs import Trajectory

LENGTH = 8
BUCKETS = BucketConfig(lengths=(LENGTH,), tokens_per_micro_batch=LENGTH * 8)
MODEL = Decoder(
    DecoderConfig(
        vocab_size=16, embed_dim=8, num_layers=2, num_heads=2, num_kv_heads=2, head_dim=4, mlp_dim=12,
        lora=LoraConfig(rank=2, alpha=4.0, targets=LORA_TARGETS),
    )
)  # fmt: skip


@functools.cache
def build():
    mesh = partitioning.make_mesh()
    optimizer = make_optimizer(OptimizerConfig(learning_rate=0.05), MODEL)
    config = UpdateConfig(ObjectiveConfig(kl_coefficient=0.1), chunk=4)
    return mesh, optimizer, make_update(MODEL, optimizer, mesh, config)


def minibatches(buckets=BUCKETS):
    rng = np.random.default_rng(0)
    mask = np.arange(LENGTH) >= 2
    logp = np.where(mask, -2.8, 0.0).astype(np.float32)
    rows = [Trajectory(rng.integers(0, 16, LENGTH).astype(np.int32), mask, logp, 0, 0, 0.0) for _ in range(4)]
    return pack(rows, np.array([1.0, -1.0, 0.5, -2.0], np.float32), buckets)[0]


def start(**kwargs):
    mesh, optimizer, _ = build()
    return init_state(MODEL, optimizer, mesh, seed=0, **kwargs)


def updated(state):
    """(state, metrics) after an update whose divergence is from the initial policy."""
    reference, _ = split_trained(MODEL, start().params)
    return build()[2](state, minibatches(), reference)


def test_adapters_alone_are_trained():
    state = start()
    adapters, base = jax.device_get(split_adapters(state.params))
    moments = [leaf for leaf in jax.tree.leaves(state.opt_state) if leaf.ndim]
    assert sum(leaf.size for leaf in moments) == 2 * count_params(adapters)
    assert count_params(moments) < count_params(base)
    state, first = updated(state)
    state, second = updated(state)
    assert first["learner/kl_reference"] == pytest.approx(0.0, abs=1e-6) and second["learner/kl_reference"] > 1e-4
    moved, left = jax.device_get(split_adapters(state.params))
    jax.tree.map(np.testing.assert_array_equal, left, base)
    for path, leaf in jax.tree_util.tree_leaves_with_path(moved):
        before = dict(jax.tree_util.tree_leaves_with_path(adapters))[path]
        assert np.abs(leaf - before).max() > 1e-3, path


def test_start_from_given_weights():
    given = jax.device_get(init_params(Decoder(MODEL.config.merged), jax.random.key(9)))
    state = start(params=given)
    adapters, base = jax.device_get(split_adapters(state.params))
    jax.tree.map(np.testing.assert_array_equal, base, given)
    assert all(not np.any(w) for path, w in jax.tree_util.tree_leaves_with_path(adapters) if "lora_b" in str(path[-1]))
    with pytest.raises(ValueError, match="lora_a.* has shape .* but the model needs None"):
        start(params=jax.device_get(state.params))


def test_a_checkpoint_goes_on_in_the_same_bits(tmp_path):
    state, _ = updated(start())
    with Checkpointer(tmp_path / "checkpoints", keep=1) as checkpointer:
        checkpointer.save(1, state, {})
        checkpointer.wait()
        found = checkpointer.restore(start()).state
    straight, resumed = updated(state)[0], updated(found)[0]
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(straight.params), jax.device_get(resumed.params))


@pytest.mark.parametrize("weight_dtype", ["policy", "int8"])
def test_the_sampler_draws_from_the_merged_weights(weight_dtype):
    state, _ = updated(start())
    merged = merge_adapters(state.params, MODEL.config)

    def drawn(model, first, then):
        settings = dict(slots=1, context=16, block=8, stop_token=15, run_seed=0, weight_dtype=weight_dtype)
        engine = Engine(model, first, **settings)
        engine.set_params(then, version=1)
        engine.submit(engine.open("x", SamplingConfig()), np.arange(4), 8)
        (response,) = engine.step()
        return response

    ours, plain = drawn(MODEL, start().params, state.params), drawn(Decoder(MODEL.config.merged), merged, merged)
    np.testing.assert_array_equal(ours.tokens, plain.tokens)
    np.testing.assert_allclose(ours.logp, plain.logp, atol=1e-6)


SHARDED = """
    import dataclasses, jax, numpy as np
    from tests.learner import test_lora_update as t
    from spade_jax.learner import partitioning
    from spade_jax.learner.state import init_state, make_optimizer, OptimizerConfig
    from spade_jax.learner.step import make_update, UpdateConfig
    from spade_jax.policy import Decoder
    from spade_jax.sampler.engine import _converted

    found = []
    for sizes in (dict(data=-1), dict(data=1, fsdp=2, tensor=2, expert=2)):
        for experts in (0, 2):
            config = dataclasses.replace(t.MODEL.config, num_experts=experts, experts_per_token=min(1, experts))
            model, mesh = Decoder(config), partitioning.make_mesh(**sizes)
            optimizer = make_optimizer(OptimizerConfig(learning_rate=0.05, eps=1e-3), model)
            state = init_state(model, optimizer, mesh, seed=0)
            buckets = dataclasses.replace(t.BUCKETS, row_multiple=partitioning.batch_shards(mesh))
            update = make_update(model, optimizer, mesh, UpdateConfig(chunk=4))
            for _ in range(2):
                state, _ = update(state, t.minibatches(buckets))
            first = state.params["layers"]["attention"]["q_lora_a"]
            assert state.opt_state[1][0].mu["layers"]["attention"]["q_lora_a"].sharding == first.sharding
            if "fsdp" in sizes:
                assert first.addressable_shards[0].data.shape == (2, 4, 2), first.sharding
                merged = _converted(state.params, config, "policy")["layers"]["attention"]["q"]
                assert merged.addressable_shards[0].data.shape == (2, 4, 1, 4), merged.sharding
            found.append(jax.device_get(state.params))
    for one, other in zip(found[:2], found[2:], strict=True):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), one, other)
    print("equal")
"""


@pytest.mark.slow
def test_eight_devices_under_two_meshes():
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    env["PYTHONPATH"] = os.pathsep.join([os.getcwd(), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(SHARDED)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0 and "equal" in run.stdout, run.stderr[-3000:]
