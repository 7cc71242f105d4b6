"""The embedded default: SPADE on a laptop, with nothing to download.

    python -m spade_jax.train --config=configs/spade_tiny.py --workdir=runs/tiny

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.
Time: 8 minutes with an empty compile cache, Python 3.13, 2 idle cores; `:runlocal` 45 seconds, 40 with a warm cache;
40 steps of `:long` took 32 minutes as three runs side by side.
Memory: 2.2 GiB with the sandbox (4.0 where shared pages count once for every process).
Expect: `designer/valid_share` from 1.00 at step 0 to .89 at the least, `designer/regret_null` around 0.

Variants, comma-separated after a colon: see `VARIANTS`. Seeds: `--config.run.seed=1`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import base
from configs.words import parse_words

VARIANTS = {
    "runlocal": "4 steps with every feature on, as a smoke test",
    "long": "the longer run whose curves the README shows",
    "paper": "the published method: every switch of method.preset set back",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    if {"runlocal", "long"} <= words:
        raise ValueError("variants runlocal and long exclude each other")
    config = base.get_config()

    config.run.steps = 16
    config.policy.init = "tiny"
    config.policy.dtype = "float32"
    config.policy.remat = False
    config.tokens.tokenizer = "tiny"

    config.sampler.slots = 96
    config.sampler.context = 1024
    config.sampler.block = 16
    config.sampler.cache_dtype = "float32"
    config.sampler.agent.temperature = 1.0
    config.sampler.agent.max_new_tokens = 40
    config.sampler.designer.temperature = 0.7
    config.sampler.designer.max_new_tokens = 440
    config.sampler.hint.temperature = 0.3
    config.sampler.hint.max_new_tokens = 48

    config.rollout.active_skills = 3
    config.rollout.places_per_skill = 4
    config.rollout.seeds = 8
    config.rollout.min_pairs = 6
    config.rollout.regenerate_every = 2
    config.rollout.max_turns = 12

    config.designer.style = "tiny"
    config.designer.attempts = 2
    config.designer.exemplars = 1
    config.designer.document_words = 40
    # Its policy varies the constants and words of 13 families, which the coarser tiers would soon call duplicates.
    config.gate.novel_tiers = ("source", "tree")
    config.corpus.chunk_words = 120
    config.sandbox.max_live = 128
    config.sandbox.memory_mb_total = 4096
    config.sandbox.limits.call_seconds = 5.0  # a busy laptop must not void an honest program

    # A program has as many tokens as the plays of three environments, and every token counts alike:
    # with a larger weight and learning rate the share of valid programs falls.
    config.learner.role_weight.designer = 0.5
    config.learner.max_staleness = 4
    # What fits the caches of a CPU; an update has 5 to 20 thousand tokens, of which larger ones waste more in filling.
    config.learner.micro_batch_tokens = 1024
    config.learner.buckets = (
        96, 112, 128, 144, 160, 176, 192, 224, 256, 288, 320, 384, 448, 512, 640, 768, 1024,
    )  # fmt: skip
    config.learner.constant_length = 256
    config.learner.vocab_chunk = 128
    config.learner.optimizer.learning_rate = 2e-4
    config.learner.optimizer.weight_decay = 0.0

    config.evaluation.every_steps = 8
    config.evaluation.instances = 4
    config.evaluation.temperature = 1.0
    config.checkpoint.save_steps = 4
    config.checkpoint.save_secs = 120.0

    if "runlocal" in words:
        config.run.steps = 4
        config.rollout.active_skills = 2
        config.rollout.places_per_skill = 2
        config.rollout.seeds = 4
        config.rollout.min_pairs = 3
        config.evaluation.every_steps = 2
        config.evaluation.instances = 1
        config.checkpoint.save_steps = 2
        config.memory.replay_share = 0.5  # so that replay happens within 4 steps
    if "long" in words:
        config.run.steps = 40
        config.learner.optimizer.learning_rate = 3e-4
        config.evaluation.every_steps = 10
        config.evaluation.instances = 16
        config.checkpoint.save_steps = 10
    if "paper" in words:
        config.method.preset = "paper"
    return config
