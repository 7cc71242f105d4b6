"""Rejects configs that cannot work before anything is compiled or written.

Each message names key, value and remedy. The limits of a room's own numbers are checked
where they would otherwise surface as a crash or, worse, as a run that learns nothing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import GATE_CHECKS, get_key

NOVEL_TIERS = ("source", "tree", "shingles", "behaviour")
MESH_AXES = ("data", "fsdp", "tensor", "expert")

_CHOICES: dict[str, tuple[str, ...]] = {
    "method.regret_scale": ("adaptive", "fixed"),
    "policy.dtype": ("float32", "bfloat16"),
    "sampler.cache_dtype": ("float32", "bfloat16"),
    "rollout.environments": ("designer", "bundled"),
    "rollout.kind": ("game", "tool"),
    "designer.style": ("tiny", "full"),
    "memory.rank": ("lower_bound", "regret"),
    "memory.eviction": ("cells", "oldest"),
    "corpus.draw": ("epoch", "uniform"),
    "sandbox.isolation": ("limits",),
    "learner.estimator.agent": ("ema", "group_zscore", "group_mean", "leave_one_out"),
    # The two roles' groups share the table of running baselines, so only one of them may use it.
    "learner.estimator.designer": ("group_zscore", "group_mean", "leave_one_out"),
    "learner.aggregation": ("token_mean", "sequence_mean", "constant_length"),
}

# key -> (least, greatest), both allowed.
_RANGES: dict[str, tuple[float, float]] = {
    "run.seed": (0, 2**63 - 1),
    "run.steps": (1, math.inf),
    "method.invalid_share_cap": (0, 1),
    "sampler.slots": (1, math.inf),
    "sampler.context": (2, math.inf),
    "sampler.block": (1, math.inf),
    "rollout.active_skills": (1, math.inf),
    "rollout.places_per_skill": (1, math.inf),
    "rollout.seeds": (2, math.inf),
    "rollout.regenerate_every": (1, math.inf),
    "rollout.min_pairs": (2, math.inf),
    "rollout.max_turns": (1, math.inf),
    "rollout.reply_blocks": (1, math.inf),
    "designer.attempts": (1, math.inf),
    "designer.exemplars": (0, math.inf),
    "designer.negatives": (0, math.inf),
    "designer.document_words": (1, math.inf),
    "memory.capacity": (1, math.inf),
    "memory.replay_share": (0, 1),
    "corpus.chunk_words": (1, math.inf),
    "gate.seeds": (1, math.inf),
    "gate.solvable_seeds": (1, math.inf),
    "gate.determinism_seeds": (1, math.inf),
    "gate.trivial_score": (0, 1),
    "gate.distinct_observations": (1, math.inf),
    "gate.sealed_seeds": (2, math.inf),
    "gate.parrot_score": (0, 1),
    "gate.novel_jaccard": (0.01, 1),
    "sandbox.max_live": (1, math.inf),
    "sandbox.limits.memory_mb": (32, math.inf),
    "sandbox.limits.cpu_seconds": (1, math.inf),
    "sandbox.limits.call_seconds": (0.01, math.inf),
    "sandbox.limits.reset_seconds": (0.01, math.inf),
    "sandbox.limits.observation_chars": (1, math.inf),
    "learner.role_weight.agent": (0, math.inf),
    "learner.role_weight.designer": (0, math.inf),
    "learner.constant_length": (1, math.inf),
    "learner.clip_low": (0, 1),
    "learner.clip_high": (0, math.inf),
    "learner.tis_cap": (1, math.inf),
    "learner.kl_coefficient": (0, math.inf),
    "learner.max_staleness": (0, math.inf),
    "learner.optimizer_steps": (1, math.inf),
    "learner.micro_batch_tokens": (1, math.inf),
    "learner.vocab_chunk": (1, math.inf),
    "learner.optimizer.learning_rate": (0, 1),
    "learner.optimizer.warmup_steps": (0, math.inf),
    "learner.optimizer.b1": (0, 0.999999),
    "learner.optimizer.b2": (0, 0.999999),
    "learner.optimizer.weight_decay": (0, math.inf),
    "learner.optimizer.clip_norm": (0, math.inf),
    "evaluation.every_steps": (0, math.inf),
    "evaluation.instances": (1, math.inf),
    "evaluation.temperature": (0, math.inf),
    "checkpoint.save_steps": (0, math.inf),
    "checkpoint.save_secs": (0, math.inf),
    "checkpoint.keep": (1, math.inf),
    "log.text_steps": (1, math.inf),
    "log.transcripts": (0, math.inf),
}

_SAMPLING_RANGES = {
    "temperature": (0, math.inf),
    "top_k": (0, math.inf),
    "top_p": (1e-6, 1),
    "min_p": (0, 1),
    "max_new_tokens": (1, math.inf),
}


def check_config(config: ConfigDict) -> None:
    """Checks everything that needs neither a device nor the policy's weights.

    Args:
      config: the tree of `configs/base.py`, resolved by `presets.resolve_preset`.

    Raises:
      UsageError: a combination that cannot work.
    """
    for key, choices in _CHOICES.items():
        value = get_key(config, key)
        if value not in choices:
            raise UsageError(f"{key}={value!r} is not known; use {_either(choices)}")
    ranges = dict(_RANGES)
    for role in ("agent", "designer", "hint"):
        ranges |= {f"sampler.{role}.{name}": bounds for name, bounds in _SAMPLING_RANGES.items()}
    # What is trained on must have been drawn: greedy tokens have no probability ratio.
    ranges["sampler.agent.temperature"] = ranges["sampler.designer.temperature"] = (1e-3, math.inf)
    for key, (least, greatest) in ranges.items():
        value = get_key(config, key)
        if not least <= value <= greatest:  # also False for NaN
            bound = f"at least {least}" if greatest == math.inf else f"between {least} and {greatest}"
            raise UsageError(f"{key}={value} is out of range; give a value {bound}")
    _check_rollout(config)
    _check_lengths(config)
    _check_gate(config)
    _check_paths(config)


def _check_rollout(config: ConfigDict) -> None:
    rollout, learner = config.rollout, config.learner
    if not rollout.skills:
        raise UsageError("rollout.skills=() is empty; name at least one skill")
    for skill in rollout.skills:
        if not isinstance(skill, str) or not skill.strip():
            raise UsageError(f"rollout.skills has {skill!r}, which is no skill; write each in words, in quotes")
    if len(set(rollout.skills)) != len(rollout.skills):
        raise UsageError(f"rollout.skills={tuple(rollout.skills)} names a skill twice; name each once")
    _at_most(config, "rollout.active_skills", len(rollout.skills), "the number of rollout.skills")
    if rollout.min_pairs > rollout.seeds:
        raise UsageError(
            f"rollout.min_pairs={rollout.min_pairs} is above rollout.seeds={rollout.seeds}, so no environment would "
            f"ever train; use at most {rollout.seeds}"
        )
    if learner.estimator.designer == "leave_one_out" and rollout.places_per_skill < 2:
        raise UsageError(
            "rollout.places_per_skill=1 leaves nothing to compare with under learner.estimator.designer="
            "leave_one_out, so the designer would never train; use at least 2"
        )
    if config.rollout.environments == "designer" and learner.max_staleness < rollout.regenerate_every - 1:
        raise UsageError(
            f"learner.max_staleness={learner.max_staleness} drops every designer sample, which waits "
            f"rollout.regenerate_every={rollout.regenerate_every} rollouts; use at least {rollout.regenerate_every - 1}"
        )
    if learner.role_weight.agent + learner.role_weight.designer <= 0:
        raise UsageError("learner.role_weight.agent=0 and learner.role_weight.designer=0 train nothing; raise one")


def _check_lengths(config: ConfigDict) -> None:
    sampler, learner = config.sampler, config.learner
    for role in ("agent", "designer", "hint"):
        key = f"sampler.{role}.max_new_tokens"
        if get_key(config, key) >= sampler.context:
            raise UsageError(
                f"{key}={get_key(config, key)} leaves no room for a prompt in sampler.context={sampler.context}; "
                f"use less than {sampler.context}, or raise sampler.context"
            )
    _at_most(config, "sampler.block", sampler.context, "sampler.context")
    buckets = tuple(learner.buckets)
    if not buckets or any(not isinstance(b, int) or b < 2 for b in buckets) or list(buckets) != sorted(set(buckets)):
        raise UsageError(f"learner.buckets={buckets} must be ascending lengths of at least 2; e.g. (256, 512, 1024)")
    if buckets[-1] < sampler.context:
        raise UsageError(
            f"learner.buckets={buckets} ends below sampler.context={sampler.context}, so long conversations could "
            f"not be trained on; add {sampler.context}"
        )
    if learner.micro_batch_tokens < buckets[-1]:
        raise UsageError(
            f"learner.micro_batch_tokens={learner.micro_batch_tokens} is less than one row of the longest of "
            f"learner.buckets={buckets}; use at least {buckets[-1]}"
        )


def _check_gate(config: ConfigDict) -> None:
    checks = tuple(config.gate.checks)
    unknown = [check for check in checks if check not in GATE_CHECKS]
    if unknown:
        raise UsageError(f"gate.checks has {unknown[0]!r}, which is not a check; use some of {', '.join(GATE_CHECKS)}")
    if checks != tuple(check for check in GATE_CHECKS if check in checks):
        raise UsageError(f"gate.checks={checks} is out of order; checks run cheap to dear: {', '.join(GATE_CHECKS)}")
    if checks[:2] != GATE_CHECKS[:2]:
        raise UsageError(f"gate.checks={checks} must begin with 'parse' and 'contract', which the others rely on")
    _at_most(config, "gate.distinct_observations", config.gate.seeds, "gate.seeds")
    unknown = [tier for tier in config.gate.novel_tiers if tier not in NOVEL_TIERS]
    if unknown:
        raise UsageError(f"gate.novel_tiers has {unknown[0]!r}, which is no tier; use some of {', '.join(NOVEL_TIERS)}")


def _check_paths(config: ConfigDict) -> None:
    if config.corpus.path != "builtin":
        path = Path(config.corpus.path)
        if not path.exists():
            raise UsageError(
                f"corpus.path={config.corpus.path} does not exist; give a .jsonl, .jsonl.gz, .jsonl.zst or .parquet "
                "file or a folder of text, or 'builtin'"
            )
        if path.is_dir() and not any(path.iterdir()):
            raise UsageError(f"corpus.path={config.corpus.path} is an empty folder; put text files into it")
    if config.policy.init not in ("tiny", "scratch") and not Path(config.policy.init).is_file():
        raise UsageError(
            f"policy.init={config.policy.init} is not a file; give the path of an .npz, 'tiny' for the embedded "
            "warm start, or 'scratch'"
        )
    if config.tokens.tokenizer != "tiny" and not Path(config.tokens.tokenizer).is_file():
        raise UsageError(
            f"tokens.tokenizer={config.tokens.tokenizer} is not a file; give the path of a SentencePiece .model, "
            "or 'tiny'"
        )


def resolve_mesh(mesh: ConfigDict, device_count: int) -> dict[str, int]:
    """Sizes of the mesh axes in order, with -1 filled in.

    Args:
      mesh: `config.mesh`.
      device_count: devices of all processes.

    Raises:
      UsageError: the axes cannot cover exactly these devices.
    """
    sizes = {axis: int(mesh[axis]) for axis in MESH_AXES}
    shown = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
    for axis, size in sizes.items():
        if size < 1 and size != -1:
            raise UsageError(f"mesh.{axis}={size} is not a size; use a positive number, or -1 to take the rest")
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise UsageError(f"mesh.{free[0]}=-1 and mesh.{free[1]}=-1 both take the rest; give all but one a size")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if device_count % fixed or (not free and fixed != device_count):
        remedy = f"use sizes whose product {'divides' if free else 'is'} {device_count}"
        raise UsageError(f"{shown} cannot be laid over {device_count} device(s); {remedy}")
    if free:
        sizes[free[0]] = device_count // fixed
    return sizes


def check_mesh(sizes: dict[str, int], dimensions: dict[str, int]) -> None:
    """Checks that the tensor and fsdp axes divide what they shard.

    Args:
      sizes: as returned by `resolve_mesh`.
      dimensions: the policy's num_heads, num_kv_heads, mlp_dim, vocab_size and embed_dim.

    Raises:
      UsageError: a dimension that its mesh axis does not divide.
    """
    for axis, names in (("tensor", ("num_heads", "num_kv_heads", "mlp_dim", "vocab_size")), ("fsdp", ("embed_dim",))):
        for name in names:
            if dimensions[name] % sizes[axis]:
                common = math.gcd(*(dimensions[n] for n in names))
                usable = [str(d) for d in range(1, common + 1) if common % d == 0 and d <= 4 * sizes[axis]]
                raise UsageError(
                    f"mesh.{axis}={sizes[axis]} does not divide the policy's {name}={dimensions[name]}; "
                    f"use {_either(usable)}"
                )


def _at_most(config: ConfigDict, key: str, limit: int, what: str) -> None:
    value = get_key(config, key)
    if value > limit:
        raise UsageError(f"{key}={value} is above {what}; use at most {limit}")


def _either(choices: Any) -> str:
    choices = list(choices)
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
