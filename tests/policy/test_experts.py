"""Mixture of experts: against a loop over tokens, under any imbalance, and spread over devices."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import experts

B, T, D, F, E, K = 2, 5, 6, 4, 3, 2


def weights():
    keys = jax.random.split(jax.random.key(0), 4)
    shapes = (E, D, F), (E, D, F), (E, F, D), (B, T, D)
    return tuple(jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))


def by_hand(gate, up, down, x, weight, expert):
    out = np.zeros((B, T, D))
    for b in range(B):
        for t in range(T):
            for w, e in zip(weight[b, t], expert[b, t], strict=True):
                h = x[b, t] @ gate[e]
                out[b, t] += w * ((h / (1 + np.exp(-h)) * (x[b, t] @ up[e])) @ down[e])
    return out


@pytest.mark.parametrize("case", ["spread", "one expert has all", "one expert has none"])
def test_mix_equals_a_loop_over_tokens(case):
    gate, up, down, x = weights()
    rng = np.random.default_rng(1)
    weight = rng.random((B, T, K)).astype(np.float32)
    expert = np.stack([rng.permutation(E)[:K] for _ in range(B * T)]).reshape(B, T, K)
    if case == "one expert has all":
        expert = np.full((B, T, K), 1)
    elif case == "one expert has none":
        expert = np.broadcast_to([0, 2], (B, T, K))
    arrays = [np.asarray(a, np.float64) for a in (gate, up, down, x, weight)]
    weight = jnp.asarray(weight)
    for rows in (slice(None), slice(0, 1)):  # in blocks, and few enough for every expert
        part = experts.mix("silu", ((gate,), (up,), (down,)), x[:, rows], weight[:, rows], expert[:, rows])
        np.testing.assert_allclose(part, by_hand(*arrays, expert)[:, rows], atol=1e-5, rtol=2e-6)


@pytest.mark.parametrize("frozen", [False, True])
def test_blocks_have_the_gradients_of_every_expert(frozen):
    """Of the second and third expert only, as a device that holds these has it; with adapters on two matrices."""
    gate, up, down, x = weights()
    rng = np.random.default_rng(1)
    gate, up, down = (w[1:] for w in (gate, up, down))
    factors = [rng.normal(size=shape).astype(np.float32) for shape in ((2, D, 1), (2, 1, F), (2, F, 1), (2, 1, D))]
    arguments = (
        ((gate, *factors[:2]), (up,), (down, *factors[2:])),
        x.reshape(-1, D),
        rng.random((B * T, K)).astype(np.float32),
    )
    expert = np.stack([rng.permutation(E)[:K] for _ in range(B * T)])

    def value(function, *arguments):
        return jnp.sum(function(*arguments, expert, 1) * jnp.cos(jnp.arange(B * T * D)).reshape(-1, D))

    def of(function):
        return jax.jit(jax.value_and_grad(lambda *a: value(function, *a), argnums=(0, 1, 2)))(*arguments)

    loss, gradient = of(lambda *a: experts._in_blocks("silu", 2, frozen, *a))
    wanted, (d_weights, *rest) = of(lambda *a: experts._every("silu", *a))
    if frozen:
        d_weights = tuple((jnp.zeros_like(w[0]), *w[1:]) for w in d_weights)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-4), gradient, (d_weights, *rest))


def test_route_by_hand():
    logits = jnp.log(jnp.array([[[0.5, 0.2, 0.3]]]))
    probability, weight, expert = experts.route(logits, 2, normalised=True)
    np.testing.assert_allclose(probability[0, 0], [0.5, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(weight[0, 0], [0.625, 0.375], rtol=1e-6)
    assert expert[0, 0].tolist() == [0, 2]
    np.testing.assert_allclose(experts.route(logits, 2, normalised=False)[1][0, 0], [0.5, 0.3], rtol=1e-6)


def test_load_and_balance_by_hand():
    # Two tokens that count: experts {0, 2} and {0, 1}; a third that does not.
    probability = jnp.array([[[0.5, 0.2, 0.3], [0.6, 0.3, 0.1], [0.0, 0.0, 1.0]]])
    load = experts.load(probability, jnp.array([[[0, 2], [0, 1], [2, 1]]]), jnp.array([[True, True, False]]))
    np.testing.assert_allclose(load, [[1.0, 0.5, 0.5], [1.1, 0.5, 0.4]], rtol=1e-6)
    # 3 * (.5 * .55 + .25 * .25 + .25 * .2)
    np.testing.assert_allclose(experts.balance_loss(load[None]), 3 * 0.3875, rtol=1e-6)
    even = jnp.full((2, 2, 4), 2.0)
    np.testing.assert_allclose(experts.balance_loss(even), 1.0)


SCRIPT = """
import json
import jax, jax.numpy as jnp, numpy as np
from spade_jax.learner import partitioning
from spade_jax.learner.logprobs import routed_logprobs
from spade_jax.learner.state import param_shardings
from spade_jax.policy import Decoder, DecoderConfig, init_params, experts

config = DecoderConfig(vocab_size=40, embed_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=12,
                       num_experts=8, experts_per_token=3, qk_norm=True, remat=True)
model = Decoder(config)
params = init_params(model, jax.random.key(1))
tokens = np.asarray(jax.random.randint(jax.random.key(2), (8, 12), 0, 40))
positions = np.broadcast_to(np.arange(12, dtype=np.int32), (8, 12))

def loss(params, tokens, positions):
    ones = jnp.ones(8)
    logp, _, load = routed_logprobs(model, params, tokens, positions, ones, tokens >= 0)
    return jnp.sum(logp * jnp.sin(tokens)) + experts.balance_loss(load), load

grad = jax.jit(jax.value_and_grad(loss, has_aux=True))
(alone, load), gradient = grad(params, tokens, positions)
result = {"sizes": []}
for sizes in (dict(expert=4, fsdp=2), dict(expert=2, tensor=2, fsdp=2)):
    mesh = partitioning.make_mesh(**sizes)
    with partitioning.activate(mesh):
        sharded = jax.device_put(params, param_shardings(model, mesh))
        rows = jax.device_put((tokens, positions), partitioning.batch_sharding(mesh))
        gate = sharded["layers"]["mlp"]["gate"]
        text = grad.lower(sharded, *rows).compile().as_text()
        (together, load_too), too = grad(sharded, *rows)
    worst = max(float(np.abs(np.asarray(a) - np.asarray(b)).max())
                for a, b in zip(jax.tree.leaves(gradient), jax.tree.leaves(too)))
    result["sizes"].append({
        "loss": abs(float(alone) - float(together)), "gradient": worst, "gathers": "all-gather" in text,
        "scatters": "reduce-scatter" in text or "all-reduce" in text,
        "load": float(np.abs(np.asarray(load) - np.asarray(load_too)).max()),
        "shard": gate.sharding.shard_shape(gate.shape)})
result["tokens"] = np.asarray(load)[:, 0].sum(-1).tolist()
print(json.dumps(result))
"""


@pytest.mark.slow
def test_experts_on_eight_devices_give_the_same_loss_and_gradients():
    env = dict(os.environ, JAX_PLATFORMS="cpu", JAX_NUM_CPU_DEVICES="8")
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(SCRIPT)], env=env, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout.splitlines()[-1])
    for case in result["sizes"]:
        assert case["loss"] < 1e-4 and case["gradient"] < 1e-4 and case["load"] < 1e-4, case
        assert case["gathers"] and case["scatters"]
    assert [case["shard"] for case in result["sizes"]] == [[2, 2, 8, 12], [2, 4, 8, 6]]
    # Every token's places are all accounted for: none was dropped.
    np.testing.assert_allclose(result["tokens"], 8 * 12, rtol=1e-6)
