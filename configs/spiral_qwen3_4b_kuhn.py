"""SPIRAL with Qwen3-4B-Base on Kuhn poker, on 8 accelerators of 80 GB; the published method's hyper-parameters.

    python -m spade_jax.train --config=configs/spiral_qwen3_4b_kuhn.py --workdir=runs/spiral_qwen3_4b

`policy.init` is the model's Hugging Face folder (config.json, safetensors, tokenizer.json).

Published are 128 turns an iteration. Here an iteration is whole matches: 10 of five rounds, of two to three turns each.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by count: 4.02B parameters in float32 with Adam's moments and a gradient, 16 bytes each over 8
devices, 8.0 GB; the sampler's bfloat16 copy, sharded alike, 1.0 GB; the cache, 147 kB a token (36 layers, 8 heads of
128, keys and values), 2 slots of 5,120 tokens a device, 1.5 GB.
Time: not measured; no such machine was at hand. `:runlocal` runs on 2 CPU cores in a minute.

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
    "compat": "the original's quirks: bets move no chips, the last round decides, invalid moves cost -1.5 and pay .5",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.run.steps = 400
    config.method.algorithm = "spiral"
    config.policy.init = "models/Qwen3-4B-Base"
    config.tokens.tokenizer = "policy"

    config.sampler.slots = 16
    config.sampler.context = 5120
    config.sampler.agent.temperature = 1.0
    config.sampler.agent.max_new_tokens = 4096

    config.selfplay.games = ("kuhn_poker",)
    config.selfplay.matches = 10

    config.learner.estimator.agent = "ema"
    config.learner.aggregation = "constant_length"
    config.learner.constant_length = 4096
    config.learner.clip_high = 0.2
    config.learner.optimizer_steps = 2
    config.learner.buckets = (1024, 2048, 3072, 4096, 5120)
    config.learner.optimizer.b2 = 0.95
    config.learner.optimizer.weight_decay = 0.0

    config.evaluation.every_steps = 50
    config.evaluation.temperature = 1.0
    config.mesh.data, config.mesh.fsdp = 1, 8

    if "compat" in words:
        config.games.kuhn_poker.compat = True
        config.selfplay.invalid_penalty = 1.5
        config.selfplay.invalid_bonus = 0.5
    if "runlocal" in words:
        tiny_random.substitute(config, qk_norm=True, rope_theta=1e6)
    return config
