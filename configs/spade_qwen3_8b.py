"""SPADE with Qwen3-8B, which reasons before it answers, on 8 accelerators of 80 GB.

    python -m spade_jax.train --config=configs/spade_qwen3_8b.py --workdir=runs/qwen3_8b

The published method's hyper-parameters (configs/base.py), with the divergence from the initial policy that it uses for
this model. Reasoning stays in the conversation: the tokens that were drawn are those that are trained on, where the
model's own template would take them out of past turns.

Hardware: one host of 8 GPUs of 80 GB. Mesh: fsdp 8.
Memory per device, by `python -m spade_jax.plan --config=configs/spade_qwen3_8b.py --devices=8` (2026-11-30; the model's
folder may hold nothing but config.json): weights and a gradient in float32 with Adam's moments 16.4 GB; the reference
policy 4.1 GB; the sampler's bfloat16 copies, whole and cut into layers, 3.8 GB; the cache, 147 kB a token (36 layers, 8
heads of 128, keys and values), 2 slots of 32,768 tokens a device, 9.7 GB; temporarily 38.7 GB in an update of one row
of 32,768 tokens a device (a micro-batch's gradient before it is added, the inputs of the layers in float32, the
attention's scores, which cuDNN does not hold), less in a prefill. 72.6 GB of 73.6 usable: fits.
Time: not measured; no such machine was at hand. `:runlocal` runs on 2 CPU cores in a few minutes.

`:lora` trains adapters of rank 32 on every projection, 87M parameters, and needs 4 such GPUs. Mesh: fsdp 4. Per
device, by the same command with `:lora --devices=4`: the weights in bfloat16 4.4 GB; adapters with moments, gradient
and reference 1.0 GB; the sampler's merged copies 7.9 GB; the cache of 2 slots 9.7 GB; temporarily 41.7 GB in an update,
of it float32 copies that only the CPU's compiler makes. 64.5 GB of 73.6 usable: fits. Its learning rate is ten times
that of all weights.

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
    "lora": "low-rank adapters in place of all weights, on 4 accelerators",
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
