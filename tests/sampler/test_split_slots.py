"""Slots that are split over devices: the same draws as on one device, and rows of the cache that never leave theirs."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

from spade_jax.policy import DecoderConfig
from spade_jax.sampler.engine import largest_prefill, prefill_rows

EIGHT_DEVICES = """
    import jax, numpy as np
    from spade_jax.learner import partitioning
    from spade_jax.policy import Decoder, DecoderConfig, init_cache, init_params, split_layers, unrolled_params
    from spade_jax.runtime import collectives
    from spade_jax.sampler import Engine, SamplingConfig
    from spade_jax.sampler.decode import copy_rows, prefill, shares

    SMALL = dict(vocab_size=40, embed_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=32)
    CONTEXT, SLOTS = 64, 12

    def prompt(seed, length):
        return np.random.default_rng(seed).integers(2, 40, length).astype(np.int32)

    def play(model, params, mesh):
        engine = Engine(model, params, slots=SLOTS, context=CONTEXT, block=4, stop_token=1, run_seed=0, mesh=mesh)
        found, turns = [], {}
        for i in range(20):  # groups of 10 with a common prefix, of which each share may hold some
            handle = engine.open(f"c{i}", SamplingConfig(), f"g{i // 10}")
            engine.submit(handle, np.concatenate([prompt(i // 10, 20), prompt(100 + i, 1 + i % 4)]), 3 + i % 5)
            turns[handle] = 0
        while engine.busy:
            for r in engine.step():
                found.append((r.handle, turns[r.handle], r.tokens, r.logp))
                turns[r.handle] += 1
                if turns[r.handle] == 2:
                    engine.close(r.handle)
                else:
                    engine.submit(r.handle, prompt(r.handle, 9), 5)
        assert engine.counters.copied_tokens >= 20, engine.counters
        return sorted(found, key=lambda f: f[:2]), engine

    for experts, sizes in ((0, dict(data=1, fsdp=2, tensor=2, expert=2)), (4, dict(data=2, fsdp=2, expert=2))):
        model = Decoder(DecoderConfig(**SMALL, num_experts=experts, experts_per_token=min(2, experts)))
        params = init_params(model, jax.random.key(0))
        params = params | {"embedding": params["embedding"] * 30}  # far from uniform
        (alone, _), (apart, engine) = (play(model, params, mesh) for mesh in (None, partitioning.make_mesh(**sizes)))
        assert shares(engine._sharding) == 4, engine._sharding  # 8 do not divide 12 slots
        assert len(apart) == len(alone) == 40
        for (*a, tokens_a, logp_a), (*b, tokens_b, logp_b) in zip(alone, apart, strict=True):
            assert a == b and tokens_a.tolist() == tokens_b.tolist(), (sizes, a)
            np.testing.assert_allclose(logp_a, logp_b, atol=1e-5)
    print("the same draws")

    # A row of the cache is far larger than the network: none may be sent.
    mesh, context = partitioning.make_mesh(data=2, fsdp=4), 4096
    cache = split_layers(init_cache(model.config, 16, context))
    placed = jax.device_put(cache, engine._sharding.update(mesh=mesh, spec=jax.P(("data", "fsdp"), None)))
    sharding, numbers = placed[0].k.sharding, np.zeros(8, np.int32)
    with jax.set_mesh(mesh):
        decoder, own = Decoder(model.config, unrolled=True), unrolled_params(params, 2)
        filled = prefill.lower(decoder, own, placed, np.zeros((8, 4), np.int32), numbers, numbers, numbers,
                               window=context, sharding=sharding).compile()
        copied = copy_rows.lower(placed, numbers, numbers, window=context, sharding=sharding).compile()
    row = sum(x.nbytes for x in jax.tree.leaves(cache)) / 16
    sent = sum(traffic.sent for traffic in collectives.count(filled.as_text()).values())
    assert sent < row / 2, (sent, row)
    assert not collectives.count(copied.as_text())
    print("nothing sent")
"""


@pytest.mark.slow
def test_eight_devices():
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    env["PYTHONPATH"] = os.pathsep.join([os.getcwd(), env.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", textwrap.dedent(EIGHT_DEVICES)]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0 and run.stdout == "the same draws\nnothing sent\n", run.stderr[-3000:]


def test_rows_of_a_prefill_by_hand():
    small = DecoderConfig(
        vocab_size=8, embed_dim=8, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, mlp_dim=8
    )  # fmt: skip
    assert prefill_rows(small, 1, "float32", 16, 256) == (1, 4, 16)
    assert prefill_rows(small, 8, "float32", 16, 256) == (1, 2)
    assert prefill_rows(small, 64, "float32", 16, 256) == (1,)
    # 2^29 scores at most: 256 tokens x 4 heads x 65,536 positions are 2^26, so 8 rows, of which a call has 4.
    assert largest_prefill(small, 1, "float32", 65_536) == (4, 256)
    assert largest_prefill(small, 1, "float32", 100) == (16, 100)
    # Qwen3-8B: a row of 32,768 tokens is 4.8e9 bytes of cache in bfloat16, more than 2^32 already.
    large = DecoderConfig(
        vocab_size=8, embed_dim=4096, num_layers=36, num_heads=32, num_kv_heads=8, head_dim=128, mlp_dim=8
    )  # fmt: skip
    assert prefill_rows(large, 1, "bfloat16", 16, 32_768) == (1,)
    assert prefill_rows(large, 1, "bfloat16", 16, 4096) == (1, 4)
