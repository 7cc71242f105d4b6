"""What `:runlocal` makes of a config for a large model: the same architecture, tiny, random and at once."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

SHAPE = dict(
    vocab_size=2048,  # of the embedded tokenizer
    embed_dim=64,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    mlp_dim=96,
)


def substitute(config: ConfigDict, **architecture: Any) -> None:
    """Sets the config to 2 steps of a random policy that plays the bundled programs.

    Its own programs would all be rejected, and nothing would be played. It wins none of the bundled ones either, so
    that every advantage is 0 and no update has a row. What the update makes of the architecture is seen in two-player
    games, where a move that is none loses: add `--config.method.algorithm=spiral --config.learner.estimator.agent=ema`.

    Args:
      config: changed in place.
      **architecture: features of the large model, and what differs from SHAPE.
    """
    config.run.steps = 2
    config.policy.init = "scratch"
    config.policy.dtype = "float32"
    for name, value in (SHAPE | architecture).items():
        config.policy.architecture[name] = value
    config.tokens.tokenizer = "tiny"
    config.designer.style = "tiny"
    config.sampler.slots = 16
    config.sampler.context = 512
    config.sampler.block = 8
    config.sampler.cache_dtype = "float32"
    config.sampler.agent.temperature = 1.0
    config.sampler.agent.max_new_tokens = 16
    config.sampler.designer.max_new_tokens = 64
    config.sampler.hint.max_new_tokens = 16
    config.rollout.environments = "bundled"
    config.rollout.active_skills = 2
    config.rollout.places_per_skill = 2
    config.rollout.seeds = 2
    config.rollout.min_pairs = 2
    config.rollout.regenerate_every = 1
    config.rollout.max_turns = 2
    config.sandbox.max_live = 64
    config.sandbox.memory_mb_total = 4096
    config.learner.micro_batch_tokens = 1024
    config.learner.buckets = (256, 512)
    config.evaluation.every_steps = 0
    config.checkpoint.save_steps = 1
    config.mesh.data, config.mesh.fsdp, config.mesh.tensor, config.mesh.expert = -1, 1, 1, 1
