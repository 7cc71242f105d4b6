"""SPADE with Qwen3-4B on 8 accelerators of 80 GB; the published method's hyper-parameters (configs/base.py).

    python -m spade_jax.train --config=configs/spade_qwen3_4b.py --workdir=runs/qwen3_4b

`policy.init` is the model's Hugging Face folder (config.json, safetensors, tokenizer.json). Give Qwen3-4B-Instruct-2507
for a model that never reasons before it answers.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by `python -m spade_jax.plan --config=configs/spade_qwen3_4b.py --devices=8` (2026-11-30; the model's
folder may hold nothing but config.json): weights and a gradient in float32 with Adam's moments 8.0 GB; the sampler's
bfloat16 copies, whole and cut into layers, 1.9 GB; the cache, 147 kB a token (36 layers, 8 heads of 128, keys and
values), 6 slots of 32,768 tokens a device, 29.0 GB; temporarily 25.8 GB in an update of one row of 32,768 tokens a
device (a micro-batch's gradient before it is added, the inputs of the layers in float32, the attention's scores, which
cuDNN does not hold), less in a prefill. 64.7 GB of 73.6 usable: fits.
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
