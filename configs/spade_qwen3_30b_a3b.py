"""SPADE with Qwen3-30B-A3B, 128 experts of which a token goes through 8, on 32 accelerators of 80 GB.

    python -m spade_jax.train --config=configs/spade_qwen3_30b_a3b.py --workdir=runs/qwen3_30b_a3b

The published method's hyper-parameters (configs/base.py), with a weak loss that keeps the experts' load even
(`learner.router_balance`), whose state is under `learner/router_*`.

Hardware: 32 GPUs of 80 GB. Mesh: expert 8, fsdp 4.
Memory per device, by `python -m spade_jax.plan --config=configs/spade_qwen3_30b_a3b.py --devices=32` (2026-11-30; the
model's folder may hold nothing but config.json): weights and a gradient in float32 with Adam's moments 20.7 GB (the
experts' 29.0B parameters over 32 devices, the other 1.5B, which only fsdp shards, over 4); the sampler's bfloat16
copies, whole and cut into layers, 5.1 GB; the cache, 98 kB a token (48 layers, 4 heads of 128, keys and values), 1 slot
of 32,768 tokens a device, 3.2 GB; temporarily 28.6 GB in an update of one row of 32,768 tokens a device (a
micro-batch's gradient before it is added, the inputs of the layers in float32, tokens and sums of the 8 devices that
share experts), 16.4 GB in a prefill. 57.6 GB of 73.6 usable: fits.
On 16 such GPUs (fsdp 2) it would be about 90 GB, by count: too much.
Time: not measured; no such machine was at hand. `:runlocal` runs on 2 CPU cores in a few minutes.

Variants, comma-separated after a colon: see `VARIANTS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import base, tiny_random
from configs.words import parse_words

VARIANTS = {
    "runlocal": "2 steps of a tiny random policy of the same architecture, as a smoke test",
    "paper": "the published method: every switch of method.preset set back",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.policy.init = "models/Qwen3-30B-A3B"
    config.tokens.tokenizer = "policy"
    config.tokens.thinking = False
    config.sampler.slots = 32
    config.learner.router_balance = 0.001
    config.mesh.data, config.mesh.fsdp, config.mesh.expert = 1, 4, 8

    if "runlocal" in words:
        experts = dict(mlp_dim=32, num_experts=8, experts_per_token=2)
        tiny_random.substitute(config, qk_norm=True, tied_head=False, rope_theta=1e6, **experts)
    if "paper" in words:
        config.method.preset = "paper"
    return config
