"""Causal attention's gradient by hand against that of the whole score matrix."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import attention
from spade_jax.policy.attention import PLAIN, Scores, causal_attention

RULES = {
    "plain": (PLAIN, False),
    "scaled": (Scores(scale=0.6), False),
    "window": (Scores(window=20), True),
    "window of one": (Scores(window=1), True),
    "window elsewhere": (Scores(window=20), False),
    "window, traced": (Scores(window=20), jnp.array(True)),
    "window elsewhere, traced": (Scores(window=20), jnp.array(False)),
    "soft cap": (Scores(softcap=1.5), False),
    "soft cap and window": (Scores(scale=0.6, softcap=1.5, window=70), True),
}


def operands(T=150, K=2, G=3, D=8, dtype="float32"):
    """q, k, v and the output's cotangent; T=150 makes three chunks, the last one short."""
    shapes = (2, T, K, G, D), (2, T, K, D), (2, T, K, D), (2, T, K, G, D)
    keys = jax.random.split(jax.random.key(T), 4)
    *qkv, g = (1.5 * jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True))
    return [x.astype(dtype) for x in qkv], g


def whole_matrix(q, k, v, rule, local):
    """The definition, in float32."""
    q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
    T, D = q.shape[1], q.shape[-1]
    scores = jnp.einsum("btkgd,bskd->bkgts", q, k) * (rule.scale or D**-0.5)
    scores = rule.softcap * jnp.tanh(scores / rule.softcap) if rule.softcap else scores
    distance = np.arange(T)[:, None] - np.arange(T)[None, :]
    near = (distance < rule.window) | ~jnp.asarray(local) if rule.window else True
    weights = jax.nn.softmax(jnp.where((distance >= 0) & near, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bkgts,bskd->btkgd", weights, v)


@functools.partial(jax.jit, static_argnames=("attend", "rule", "local"))
def value_and_gradients(attend, qkv, g, rule, local=None, traced=None):
    out, pull = jax.vjp(lambda *qkv: attend(*qkv, rule, local if traced is None else traced), *qkv)
    return out, *pull(g)


def both(qkv, g, rule, local):
    local = {"local": local} if isinstance(local, bool) else {"traced": local}
    exact = [x.astype(jnp.float32) for x in qkv]
    return value_and_gradients(causal_attention, qkv, g, rule, **local), value_and_gradients(
        whole_matrix, exact, g, rule, **local
    )


@pytest.mark.parametrize("name, heads", [*((name, (2, 3)) for name in RULES), ("plain", (1, 4)), ("plain", (3, 1))])
def test_gradient_is_that_of_the_whole_matrix(name, heads):
    got, wanted = both(*operands(K=heads[0], G=heads[1]), *RULES[name])
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5 * max(1, np.abs(b).max()), rtol=1e-5)


@pytest.mark.parametrize(
    "name, length, dtype",
    [
        ("plain", 144, "float32"),
        ("window", 150, "float32"),
        ("window, traced", 128, "float32"),
        ("soft cap", 150, "float32"),
        ("plain", 150, "bfloat16"),
    ],
)
def test_gradient_in_pieces_is_that_of_the_whole_matrix(name, length, dtype, monkeypatch):
    """Chunks of 64 in pieces of 16, of which the last may have a part of one, or less."""
    monkeypatch.setattr(attention, "_PIECE", 16)
    jax.clear_caches()
    got, wanted = both(*operands(T=length, dtype=dtype), *RULES[name])
    jax.clear_caches()
    for a, b in zip(got, wanted, strict=True):
        bound = 1e-5 if dtype == "float32" else 0.02
        np.testing.assert_allclose(np.asarray(a, np.float32), b, atol=bound * max(1, np.abs(b).max()), rtol=1e-5)


@pytest.mark.parametrize("name, length", [("plain", 300), ("window", 300), ("soft cap", 300)] + [("plain", 65)])
def test_gradient_in_bfloat16_is_near_float32(name, length):
    qkv, g = operands(T=length, D=32, dtype="bfloat16")
    got, wanted = both(qkv, g, *RULES[name])
    assert [x.dtype for x in got] == ["float32", "bfloat16", "bfloat16", "bfloat16"]
    for a, b in zip(got, wanted, strict=True):
        error = np.asarray(a, np.float32) - b
        assert np.linalg.norm(error) < 0.01 * np.linalg.norm(b)  # an operand is rounded by up to .004


@pytest.mark.parametrize("length", [1, 2, 12, 64])
@pytest.mark.parametrize("heads", [(1, 1), (2, 1), (2, 3)])
def test_one_chunk_has_a_gradient_in_bfloat16(length, heads):
    """XLA:CPU has products of bfloat16 for some orders of the axes only, and changes their order."""
    got, wanted = both(*operands(T=length, K=heads[0], G=heads[1], dtype="bfloat16"), PLAIN, False)
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(a, np.float32), b, atol=0.02 * np.abs(b).max() + 1e-6)


def test_padding_has_no_gradient_and_gives_none():
    """Rows end in padding, whose output nothing depends on."""
    (q, k, v), g = operands()
    n = 97
    clean = value_and_gradients(causal_attention, [x[:, :n] for x in (q, k, v)], g[:, :n], PLAIN, local=False)
    dirty = [x.at[:, n:].multiply(1e4) for x in (q, k, v)]
    out, *gradients = value_and_gradients(causal_attention, dirty, g.at[:, n:].set(0.0), PLAIN, local=False)
    np.testing.assert_allclose(out[:, :n], clean[0], atol=1e-5)
    for a, b in zip(gradients, clean[1:], strict=True):
        np.testing.assert_allclose(a[:, :n], b, atol=1e-5)
        np.testing.assert_array_equal(a[:, n:], 0)


@pytest.mark.parametrize(
    "policy",
    [None, jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.dots_with_no_batch_dims_saveable],
)
def test_gradient_is_the_same_recomputed(policy):
    qkv, g = operands()
    again = jax.checkpoint(causal_attention, policy=policy, static_argnums=(3, 4))
    wanted = value_and_gradients(causal_attention, qkv, g, PLAIN, local=False)
    for a, b in zip(value_and_gradients(again, qkv, g, PLAIN, local=False), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="reads what XLA makes of it on CPUs")
@pytest.mark.parametrize("groups", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_products_sum_the_last_axis_of_their_first_operand(dtype, groups):
    """Others are not given to the library of XLA:CPU, and take up to four times as long."""
    qkv, g = operands(T=256, G=groups, D=32, dtype=dtype)
    text = value_and_gradients.lower(causal_attention, qkv, g, PLAIN, local=False).compile().as_text()
    products = [line for line in text.splitlines() if " dot(" in line]
    assert len(products) == 4 * 6  # chunks, products of each
    for line in products:
        assert "lhs_contracting_dims={3}" in line, line


MESH_SCRIPT = """
import sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from spade_jax.policy.attention import causal_attention

mesh = jax.make_mesh((2, 2), ("rows", "heads"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
keys = jax.random.split(jax.random.key(0), 4)
shapes = (2, 150, 2, 3, 8), (2, 150, 2, 8), (2, 150, 2, 8), (2, 150, 2, 3, 8)
operands = [jax.random.normal(key, shape) for key, shape in zip(keys, shapes)]

def gradients(q, k, v, g):
    out, pull = jax.vjp(causal_attention, q, k, v)
    return out, *pull(g)

alone = jax.jit(gradients)(*operands)
spread = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("rows", None, "heads"))) for x in operands]
program = jax.jit(gradients).lower(*spread).compile()
for ours, wanted in zip(program(*spread), alone):
    assert ours.sharding.shard_shape(ours.shape)[:3] == (1, 150, 1), ours.sharding
    np.testing.assert_allclose(ours, wanted, atol=1e-5)
text = program.as_text()
assert not [name for name in ("all-gather", "all-reduce", "all-to-all", "collective-permute") if name in text]
print("done")
"""


def test_rows_and_heads_stay_on_their_devices():
    env = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    done = subprocess.run([sys.executable, "-c", MESH_SCRIPT], env=env, capture_output=True, text=True, timeout=600)
    assert done.stdout == "done\n", done.stderr[-3000:]
