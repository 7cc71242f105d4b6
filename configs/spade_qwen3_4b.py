"""SPADE with Qwen3-4B on 8 accelerators of 80 GB; the published method's hyper-parameters (configs/base.py).

    python -m spade_jax.train --config=configs/spade_qwen3_4b.py --workdir=runs/qwen3_4b

`policy.init` is the model's Hugging Face folder (config.json, safetensors, tokenizer.json). Give Qwen3-4B-Instruct-2507
for a model that never reasons before it answers.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by count: 4.02B parameters in float32 with Adam's moments and a gradient, 16 bytes each over 8
devices, 8.0 GB; the sampler's bfloat16 copies, whole and cut into layers, 2.0 GB; the cache, 147 kB a token (36 layers,
8 heads of 128, keys and values), 8 slots of 32,768 tokens a device, 38.7 GB. In an update of one row of 32,768 tokens a
device: a micro-batch's gradient before it is added, 2.0 GB, and the inputs of the layers, kept in float32, 12.1 GB.
About 63 GB.
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

    config.policy.init = "models/Qwen3-4B"
    config.tokens.tokenizer = "policy"
    config.tokens.thinking = False
    config.sampler.slots = 48
    config.mesh.data, config.mesh.fsdp = 1, 8

    if "runlocal" in words:
        tiny_random.substitute(config, qk_norm=True, rope_theta=1e6)
    if "paper" in words:
        config.method.preset = "paper"
    return config
