"""SPADE with Gemma 3 4B (its text half) on 8 accelerators of 80 GB; the published method's hyper-parameters.

    python -m spade_jax.train --config=configs/spade_gemma3_4b.py --workdir=runs/gemma3_4b

`policy.init` is the model's Hugging Face folder; the vision half of the checkpoint is passed over, and what is exported
is the text model.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by `python -m spade_jax.plan --config=configs/spade_gemma3_4b.py --devices=8` (2026-11-30; the
model's folder may hold nothing but config.json): weights and a gradient in float32 with Adam's moments 7.8 GB; the
sampler's bfloat16 copies, whole and cut into layers, 1.8 GB; the cache, 139 kB a token (34 layers, 4 heads of 256, keys
and values; local layers keep all of their context, too), 6 slots of 32,768 tokens a device, 27.4 GB; temporarily 27.7
GB in an update of one row of 32,768 tokens a device, less in a prefill. 64.6 GB of 73.6 usable: fits.
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

TINY = dict(
    norm_plus_one=True,
    sandwich_norm=True,
    qk_norm=True,
    query_scale=0.25,
    sliding_window=64,
    local_layers=(True, False),
    rope_theta=1e6,
    local_rope_theta=10_000.0,
    activation="gelu_tanh",
    embedding_scale=8.0,
)


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.policy.init = "models/gemma-3-4b-it"
    config.tokens.tokenizer = "policy"
    config.sampler.slots = 48
    config.mesh.data, config.mesh.fsdp = 1, 8

    if "runlocal" in words:
        tiny_random.substitute(config, **TINY)
    if "paper" in words:
        config.method.preset = "paper"
    return config
