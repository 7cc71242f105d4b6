"""The networks of the benchmarks, ours and transformers' on the same weights, and what the device can do at most."""

from __future__ import annotations

import functools
import importlib.util
import json
import pathlib
import tempfile
from typing import Any

import harness
import jax
import jax.numpy as jnp

from spade_jax.policy import Decoder, DecoderConfig, huggingface, init_params, safetensors, weights

# Random weights: what they are changes neither the work nor the comparison.
NETWORKS = {
    "tiny": DecoderConfig(
        vocab_size=2048, embed_dim=192, num_layers=5, num_heads=6, num_kv_heads=2, head_dim=32, mlp_dim=512
    ),
    "smollm2": DecoderConfig(
        vocab_size=49152, embed_dim=576, num_layers=30, num_heads=9, num_kv_heads=3, head_dim=64, mlp_dim=1536,
        rope_theta=1e5,
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


@functools.cache
def network(name: str, dtype: str = "float32") -> tuple[Decoder, Any]:
    """A network of NETWORKS with random weights, the same in every precision of its products."""
    config = NETWORKS[name]
    params = init_params(Decoder(config), jax.random.key(0))
    return Decoder(DecoderConfig(**{**vars(config), "dtype": dtype})), params


@functools.cache
def has_peers() -> bool:
    """Whether transformers and torch, of the extra [benchmark], are installed; says so where they are not."""
    found = all(importlib.util.find_spec(name) for name in ("torch", "transformers"))
    if not found:
        print("torch or transformers is not installed: that side is left out", flush=True)
    return found


@functools.cache
def transformers_network(name: str, dtype: str) -> Any:
    """The same weights as transformers' own implementation runs them."""
    import torch
    import transformers

    config = NETWORKS[name]
    _, params = network(name)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        safetensors.write_folder(path, dict(weights.exported(params, config)), "float32", 10**10)
        settings = huggingface.to_huggingface(config, context=8192, dtype="float32")
        (path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()
