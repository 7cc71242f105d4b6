"""SPADE with Qwen3-8B, which reasons before it answers, on 8 accelerators of 80 GB.

    python -m spade_jax.train --config=configs/spade_qwen3_8b.py --workdir=runs/qwen3_8b

The published method's hyper-parameters (configs/base.py), with the divergence from the initial policy that it uses for
this model. Reasoning stays in the conversation: the tokens that were drawn are those that are trained on, where the
model's own template would take them out of past turns.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by count: 8.19B parameters in float32 with Adam's moments and a gradient, 16 bytes each over 8
devices, 16.4 GB; the reference policy, 4.1 GB; the sampler's bfloat16 copies, whole and cut into layers, 4.0 GB; the
cache, 147 kB a token (36 layers, 8 heads of 128, keys and values), 4 slots of 32,768 tokens a device, 19 GB. In an
update of one row of 32,768 tokens a device: a micro-batch's gradient before it is added, 4.1 GB, and the inputs of the
layers, kept in float32, 19 GB. About 67 GB.
Time: not measured; no such machine was at hand. `:runlocal` runs on 2 CPU cores in a few minutes.

`:lora` trains adapters of rank 32 on every projection, 87M parameters, and needs 2 such GPUs. Mesh: fsdp 2. Per device,
by count: the weights in bfloat16, 8.2 GB, the sampler's merged copies, 16.4 GB, adapters with moments, gradient and
reference, 1.3 GB; the cache of 4 slots, 19 GB; the inputs of the layers in an update, 19 GB. About 64 GB. Its learning
rate is ten times that of all weights.

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
    "lora": "low-rank adapters in place of all weights, on 2 accelerators",
    "paper": "the published method: every switch of method.preset set back",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.policy.init = "models/Qwen3-8B"
    config.tokens.tokenizer = "policy"
    config.tokens.thinking = True
    config.sampler.slots = 16
    config.learner.kl_coefficient = 0.005
    config.mesh.data, config.mesh.fsdp = 1, 8

    if "lora" in words:
        config.policy.lora.rank = 32
        config.learner.optimizer.learning_rate = 1e-5
        config.sampler.slots = 8
        config.mesh.data, config.mesh.fsdp = 1, 4
    if "runlocal" in words:
        tiny_random.substitute(config, qk_norm=True, tied_head=False, rope_theta=1e6)
    if "paper" in words:
        config.method.preset = "paper"
    return config
