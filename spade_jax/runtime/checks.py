"""Rejects configs that cannot work before anything is compiled or written.

Each message names key, value and remedy. The limits of a room's own numbers are checked
where they would otherwise surface as a crash or, worse, as a run that learns nothing.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict

from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import GATE_CHECKS, get_key
from spade_jax.runtime.profiling import parse_steps

EMBEDDED = ("tiny", "spiral", "tictactoe")  # the policies that come with the package, and their tokenizers
POLICIES = (*EMBEDDED, "smollm2", "scratch")  # what policy.init may be beside a path
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")  # weights of a layer that may have adapters
NOVEL_TIERS = ("source", "tree", "shingles", "behaviour")
# By kind of program, what the designer's prompts and the bundled families know.
SKILLS = {
    "game": (
        "mathematical reasoning",
        "logical deduction",
        "spatial reasoning",
        "pattern recognition",
        "optimization",
        "causal inference",
    ),
    "tool": (
        "inventory",
        "banking",
        "calendar",
        "mail",
        "library",
        "home automation",
        "travel booking",
        "customer support",
        "file storage",
        "project tracking",
    ),
}


# Options of two-player games that are words.
KUHN_PAYOFFS = ("winner", "margin")
TEXTARENA = "textarena:"  # how names of TextArena's games begin
OPPONENTS = ("random", "minimax", "initial", "endpoint")  # of an evaluation

_CHOICES: dict[str, tuple[str, ...]] = {
    "method.algorithm": ("spade", "spiral"),
    "method.regret_scale": ("adaptive", "fixed"),
    "policy.dtype": ("float32", "bfloat16"),
    "policy.attention": ("auto", "xla", "cudnn", "splash"),
    "policy.architecture.activation": ("silu", "gelu_tanh"),
    "policy.architecture.rope_scaling.kind": ("none", "linear", "llama3", "yarn"),
    "sampler.cache_dtype": ("float32", "bfloat16"),
    "sampler.weight_dtype": ("policy", "int8"),
    "sampler.on_swap": ("reprefill", "stale"),
    "rollout.environments": ("designer", "bundled"),
    "rollout.kind": ("game", "tool"),
    "selfplay.context": ("turn", "conversation"),
    "selfplay.baselines": ("role", "shared"),
    "selfplay.opponent": ("self", "random", "snapshot", "pool", "endpoint"),
    "selfplay.pool.sampling": ("recent", "hard", "uniform"),
    "games.kuhn_poker.payoff": KUHN_PAYOFFS,
    "designer.style": ("tiny", "full"),
    "memory.rank": ("lower_bound", "regret"),
    "memory.eviction": ("cells", "oldest"),
    "corpus.draw": ("epoch", "uniform"),
    "sandbox.hosts": ("local", "ray"),
    "sandbox.isolation": ("strict", "best_effort", "none"),
    "learner.estimator.agent": ("ema", "group_zscore", "group_mean", "leave_one_out", "none"),
    # The two roles' groups share the table of running baselines, so only one of them may use it.
    "learner.estimator.designer": ("group_zscore", "group_mean", "leave_one_out", "none"),
    "learner.aggregation": ("token_mean", "sequence_mean", "constant_length"),
    "learner.optimizer.kind": ("adamw", "muon"),
    "learner.optimizer.schedule": ("constant", "cosine"),
}

_SHOWN = 200  # characters of a value in a message

_GREATEST = 2**31 - 1  # of a whole number: devices and SQLite count no further

# key -> (least, greatest), both allowed. Infinity is a value of the few keys in _MAY_BE_INFINITE only.
_RANGES: dict[str, tuple[float, float]] = {
    "run.seed": (0, 2**32 - 1),  # what a JAX key takes
    "run.steps": (1, math.inf),
    "method.invalid_share_cap": (0, 1),
    "policy.lora.rank": (0, math.inf),
    "policy.lora.alpha": (1e-6, math.inf),
    "policy.architecture.vocab_size": (1, math.inf),
    "policy.architecture.embed_dim": (1, math.inf),
    "policy.architecture.num_layers": (1, math.inf),
    "policy.architecture.num_heads": (1, math.inf),
    "policy.architecture.num_kv_heads": (1, math.inf),
    "policy.architecture.head_dim": (2, math.inf),
    "policy.architecture.mlp_dim": (1, math.inf),
    "policy.architecture.rope_theta": (1, math.inf),
    "policy.architecture.norm_eps": (1e-12, 1),
    "policy.architecture.query_scale": (0, math.inf),
    "policy.architecture.attention_softcap": (0, math.inf),
    "policy.architecture.logit_softcap": (0, math.inf),
    "policy.architecture.sliding_window": (0, math.inf),
    "policy.architecture.local_rope_theta": (0, math.inf),
    "policy.architecture.embedding_scale": (1e-6, math.inf),
    "policy.architecture.num_experts": (0, math.inf),
    "policy.architecture.experts_per_token": (0, math.inf),
    "policy.architecture.rope_scaling.factor": (1, math.inf),
    "policy.architecture.rope_scaling.original_context": (0, math.inf),
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
    "rollout.max_staleness": (0, math.inf),
    "rollout.deadline_secs": (0, math.inf),
    "selfplay.matches": (2, math.inf),
    "selfplay.exploring_starts": (0, 1000),
    "selfplay.max_moves": (1, math.inf),
    "selfplay.invalid_penalty": (0, 10),
    "selfplay.invalid_bonus": (0, 10),
    "selfplay.baseline_decay": (0, 1),
    "selfplay.pool.every_steps": (1, math.inf),
    "selfplay.pool.size": (1, 1000),
    "selfplay.endpoint.timeout_secs": (0.1, 86_400),
    "selfplay.endpoint.retries": (0, 100),
    "selfplay.endpoint.max_requests": (1, math.inf),
    "selfplay.endpoint.concurrency": (1, 1000),
    "selfplay.endpoint.max_new_tokens": (1, math.inf),
    "selfplay.endpoint.temperature": (0, math.inf),
    "games.kuhn_poker.rounds": (1, 1000),
    "games.negotiation.turns": (2, 1000),
    "games.snake.size": (4, 100),
    "games.snake.apples": (1, 4),
    "games.snake.rounds": (1, 10_000),
    "games.pig_dice.target": (6, 10_000),
    "games.pig_dice.moves": (2, 10_000),
    "games.truth_and_deception.rounds": (0, 100),
    "games.liars_dice.dice": (1, 20),
    "designer.attempts": (1, math.inf),
    "designer.exemplars": (0, math.inf),
    "designer.negatives": (0, math.inf),
    "designer.document_words": (1, math.inf),
    "memory.capacity": (1, math.inf),
    "memory.replay_share": (0, 1),
    "corpus.chunk_words": (1, math.inf),
    "gate.seeds": (1, 1000),
    "gate.solvable_seeds": (1, 1000),
    "gate.determinism_seeds": (1, 1000),
    "gate.trivial_score": (0, 1),
    "gate.distinct_observations": (1, math.inf),
    "gate.sealed_seeds": (2, 1000),
    "gate.parrot_score": (0, 1),
    "gate.novel_jaccard": (0.01, 1),
    "sandbox.max_live": (3, math.inf),  # one gate holds three children
    "sandbox.memory_mb_total": (64, math.inf),
    "sandbox.limits.memory_mb": (32, math.inf),
    "sandbox.limits.cpu_seconds": (1, math.inf),
    "sandbox.limits.call_seconds": (0.01, 86_400),
    "sandbox.limits.reset_seconds": (0.01, 86_400),
    "sandbox.limits.episode_seconds": (0.01, 86_400),
    "sandbox.limits.processes": (0, math.inf),
    "sandbox.limits.open_files": (5, math.inf),
    "sandbox.limits.file_bytes": (1, math.inf),
    "sandbox.limits.frame_bytes": (1, math.inf),
    "sandbox.limits.observation_chars": (1, math.inf),
    "learner.role_weight.agent": (0, math.inf),
    "learner.role_weight.designer": (0, math.inf),
    "learner.constant_length": (1, math.inf),
    "learner.clip_low": (0, 1),
    "learner.clip_high": (0, math.inf),
    "learner.tis_cap": (1, math.inf),
    "learner.kl_coefficient": (0, math.inf),
    "learner.router_balance": (0, math.inf),
    "learner.max_staleness": (0, math.inf),
    "learner.optimizer_steps": (1, math.inf),
    "learner.micro_batch_tokens": (1, math.inf),
    "learner.vocab_chunk": (1, math.inf),
    "learner.optimizer.learning_rate": (0, 1),
    "learner.optimizer.final_fraction": (0, 1),
    "learner.optimizer.warmup_steps": (0, math.inf),
    "learner.optimizer.b1": (0, 0.999999),
    "learner.optimizer.b2": (0, 0.999999),
    "learner.optimizer.eps": (1e-30, 1),
    "learner.optimizer.weight_decay": (0, math.inf),
    "learner.optimizer.clip_norm": (0, math.inf),
    "evaluation.every_steps": (0, math.inf),
    "evaluation.instances": (1, 10_000),
    "evaluation.temperature": (0, math.inf),
    "evaluation.matches": (2, 100_000),
    "evaluation.rated_against": (0, 1000),
    "evaluation.readings": (1, 10_000),
    "evaluation.positions": (1, 4520),
    "checkpoint.save_steps": (0, math.inf),
    "checkpoint.save_secs": (0, math.inf),
    "checkpoint.keep": (1, math.inf),
    "checkpoint.keep_period": (0, math.inf),
    "log.text_steps": (1, math.inf),
    "log.transcripts": (0, math.inf),
}

_MAY_BE_INFINITE = ("learner.clip_high", "learner.tis_cap")  # which takes the clip or the cap away

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
            raise UsageError(f"{key}={_shown(value)} is not known; use {_either(choices)}")
    for key, (least, greatest) in ranges().items():
        value = get_key(config, key)
        if isinstance(value, int) and greatest == math.inf:
            greatest = _GREATEST
        if not least <= value <= greatest or (value == math.inf and key not in _MAY_BE_INFINITE):  # NaN is never within
            bound = f"at least {least}" if greatest in (math.inf, _GREATEST) else f"between {least} and {greatest}"
            if value > least:
                bound = f"at most {greatest}" if greatest < math.inf else "a finite one"
            raise UsageError(f"{key}={value} is out of range; give a value {bound}")
    _check_policy(config)
    if config.method.algorithm == "spade":
        _check_rollout(config)
    else:
        _check_selfplay(config)
    _check_lengths(config)
    _check_gate(config)
    _check_sandbox(config)
    _check_paths(config)
    try:
        parse_steps(config.profile.steps)
    except ValueError as error:
        raise UsageError(f"profile.steps={_shown(config.profile.steps)} names no steps; {error}") from error


def ranges() -> dict[str, tuple[float, float]]:
    """(least, greatest) of every number in the config but the mesh's, whose sizes hang on the devices."""
    found = dict(_RANGES)
    for role in ("agent", "designer", "hint"):
        found |= {f"sampler.{role}.{name}": bounds for name, bounds in _SAMPLING_RANGES.items()}
    # What is trained on must have been drawn: greedy tokens have no probability ratio.
    found["sampler.agent.temperature"] = found["sampler.designer.temperature"] = (1e-3, math.inf)
    return found


def _check_policy(config: ConfigDict) -> None:
    lora, shape = config.policy.lora, config.policy.architecture
    targets = tuple(lora.targets)
    if lora.rank and (not targets or not set(targets) <= set(LORA_TARGETS)):
        raise UsageError(
            f"policy.lora.targets={_shown(targets)} are not the weights that can have an adapter; use some of "
            f"{', '.join(LORA_TARGETS)}"
        )
    if shape.num_heads % shape.num_kv_heads:
        raise UsageError(
            f"policy.architecture.num_kv_heads={shape.num_kv_heads} does not divide num_heads={shape.num_heads}; use a "
            "divisor of it"
        )
    if shape.head_dim % 2:
        raise UsageError(
            f"policy.architecture.head_dim={shape.head_dim} is odd, but rotary positions turn two halves; use "
            f"{shape.head_dim + 1}"
        )


def _check_rollout(config: ConfigDict) -> None:
    rollout, learner = config.rollout, config.learner
    if not rollout.skills:
        raise UsageError("rollout.skills=() is empty; name at least one skill")
    known = SKILLS[rollout.kind]
    for skill in rollout.skills:
        if skill not in known:
            raise UsageError(
                f"rollout.skills has {_shown(skill)}, which is none of rollout.kind={rollout.kind}; "
                f"use some of {', '.join(known)}"
            )
    if len(set(rollout.skills)) != len(rollout.skills):
        raise UsageError(f"rollout.skills={tuple(rollout.skills)} names a skill twice; name each once")
    _at_most(config, "rollout.active_skills", len(rollout.skills), "the number of rollout.skills")
    if rollout.min_pairs > rollout.seeds:
        raise UsageError(
            f"rollout.min_pairs={rollout.min_pairs} is above rollout.seeds={rollout.seeds}, so no environment would "
            f"ever train; use at most {rollout.seeds}"
        )
    plays = 2 * rollout.active_skills * rollout.places_per_skill * rollout.seeds
    _at_most(config, "learner.optimizer_steps", plays, "the number of plays that a rollout trains on")
    if learner.estimator.designer == "leave_one_out" and rollout.places_per_skill < 2:
        raise UsageError(
            "rollout.places_per_skill=1 leaves nothing to compare with under learner.estimator.designer="
            "leave_one_out, so the designer would never train; use at least 2"
        )
    waits = rollout.regenerate_every - 1 if rollout.environments == "designer" else 0
    if learner.max_staleness < waits:
        raise UsageError(
            f"learner.max_staleness={learner.max_staleness} drops every designer sample, which waits "
            f"rollout.regenerate_every={rollout.regenerate_every} rollouts; use at least {waits}"
        )
    if learner.max_staleness < waits + rollout.max_staleness:
        longer = f", since designer samples wait {waits} more" if waits else ""
        raise UsageError(
            f"rollout.max_staleness={rollout.max_staleness} may draw what learner.max_staleness="
            f"{learner.max_staleness} then drops{longer}; use at most {learner.max_staleness - waits}, or "
            f"learner.max_staleness={waits + rollout.max_staleness}"
        )
    if learner.role_weight.agent + learner.role_weight.designer <= 0:
        raise UsageError("learner.role_weight.agent=0 and learner.role_weight.designer=0 train nothing; raise one")


def _check_selfplay(config: ConfigDict) -> None:
    selfplay, known = config.selfplay, tuple(sorted(config.games))
    games, weights = tuple(selfplay.games), tuple(selfplay.weights)
    if not games:
        raise UsageError("selfplay.games=() is empty; name at least one game")
    for key, names in (("selfplay.games", games), ("evaluation.games", tuple(config.evaluation.games))):
        for name in names:
            if name not in known and not str(name).startswith(TEXTARENA):
                raise UsageError(
                    f"{key} has {_shown(name)}, which is no game; use some of {', '.join(known)}, or {TEXTARENA}ID"
                )
        if len(set(names)) != len(names):
            raise UsageError(f"{key}={names} names a game twice; name each once")
    if weights and len(weights) != len(games):
        raise UsageError(
            f"selfplay.weights={weights} has {len(weights)} weight(s) for the {len(games)} game(s) of "
            f"selfplay.games={games}; give one each, or () for equal ones"
        )
    for weight in weights:
        if not _is_number(weight) or not 0 < weight < math.inf:
            raise UsageError(
                f"selfplay.weights={weights} has {_shown(weight)}; give positive numbers, and leave out a game that "
                "weighs 0"
            )
    for opponent in config.evaluation.opponents:
        if opponent not in OPPONENTS:
            raise UsageError(
                f"evaluation.opponents has {_shown(opponent)}, which is none; use some of {', '.join(OPPONENTS)}"
            )
    if selfplay.opponent == "random" and any(name.startswith(TEXTARENA) for name in games):
        raise UsageError(
            "selfplay.opponent=random cannot play games of TextArena, which does not list their legal actions; use "
            "self, snapshot, pool or endpoint"
        )
    if selfplay.exploring_starts and any(name.startswith(TEXTARENA) for name in games):
        raise UsageError(
            f"selfplay.exploring_starts={selfplay.exploring_starts} needs legal actions to draw from, which games of "
            "TextArena do not list; set it to 0"
        )
    asks = "endpoint" in (selfplay.opponent, *config.evaluation.opponents)
    if asks and not selfplay.endpoint.url.startswith(("http://", "https://")):
        raise UsageError(
            f"selfplay.endpoint.url={_shown(selfplay.endpoint.url)} is no http:// or https:// address of an opponent; "
            "give the API's, e.g. http://localhost:8000/v1"
        )
    if selfplay.context == "conversation" and config.sampler.slots < 2:
        raise UsageError(
            "sampler.slots=1 cannot hold the two conversations of a match under selfplay.context=conversation; use 2 "
            "or more"
        )
    if config.evaluation.temperature == 0 and "kuhn_poker" in (*games, *config.evaluation.games):
        raise UsageError(
            "evaluation.temperature=0 makes every move certain, so Kuhn poker's probabilities cannot be read; use the "
            "temperature of training"
        )
    _at_most(config, "learner.optimizer_steps", selfplay.matches, "selfplay.matches, which it shares out")


def _check_lengths(config: ConfigDict) -> None:
    sampler, learner = config.sampler, config.learner
    for role in ("agent", "designer", "hint") if config.method.algorithm == "spade" else ("agent",):
        key = f"sampler.{role}.max_new_tokens"
        if get_key(config, key) >= sampler.context:
            raise UsageError(
                f"{key}={get_key(config, key)} leaves no room for a prompt in sampler.context={sampler.context}; "
                f"use less than {sampler.context}, or raise sampler.context"
            )
    _at_most(config, "sampler.block", sampler.context, "sampler.context")
    if learner.optimizer.schedule == "cosine":
        updates = config.run.steps * learner.optimizer_steps
        _at_most(config, "learner.optimizer.warmup_steps", updates - 1, "what leaves the cosine a step of the run")
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


def _check_sandbox(config: ConfigDict) -> None:
    sandbox = config.sandbox
    if not sandbox.ray_address:
        raise UsageError("sandbox.ray_address='' names no cluster; give HOST:PORT, or auto")
    if sandbox.memory_mb_total < sandbox.limits.memory_mb:
        raise UsageError(
            f"sandbox.memory_mb_total={sandbox.memory_mb_total} is less than one environment may use by "
            f"sandbox.limits.memory_mb={sandbox.limits.memory_mb}; use at least {sandbox.limits.memory_mb}"
        )


def corpus_paths(config: ConfigDict) -> tuple[str, ...]:
    """The sources that `corpus.path` names, in its order."""
    return tuple(path.strip() for path in config.corpus.path.split(","))


def _check_paths(config: ConfigDict) -> None:
    paths, weights = corpus_paths(config), tuple(config.corpus.weights)
    if not config.compile_cache.dir.strip():
        raise UsageError(f"compile_cache.dir={config.compile_cache.dir!r} is empty; use auto, off, or a directory")
    folder = config.checkpoint.dir
    if "://" in folder and not re.match("gs://[^/]+/.", folder):
        raise UsageError(f"checkpoint.dir={folder} is in no store that we know; give gs://BUCKET/PATH or a folder")
    if "" in paths:
        raise UsageError(f"corpus.path={config.corpus.path!r} has an empty name; give files or folders, or 'builtin'")
    if len(set(paths)) != len(paths):
        raise UsageError(f"corpus.path={config.corpus.path} names a source twice; name each once, with its weight")
    if weights and len(weights) != len(paths):
        raise UsageError(
            f"corpus.weights={weights} has {len(weights)} weight(s) for the {len(paths)} source(s) of corpus.path="
            f"{config.corpus.path}; give one each, or () for equal ones"
        )
    for weight in weights:
        if not _is_number(weight) or not 0 < weight < math.inf:
            raise UsageError(
                f"corpus.weights={weights} has {weight!r}; give positive numbers, and leave out a source that weighs 0"
            )
    for name in paths:
        if name == "builtin":
            continue
        kind = _kind_of(name)
        if kind not in ("file", "folder"):
            raise UsageError(
                f"corpus.path={_cut(name)} {kind}; give a .jsonl, .jsonl.gz, .jsonl.zst or .parquet file, a folder of "
                "text, or 'builtin'; several separated by commas"
            )
        if kind == "folder" and not os.listdir(name):
            raise UsageError(f"corpus.path={_cut(name)} is an empty folder; put text files into it")
    init, tokenizer = config.policy.init, config.tokens.tokenizer
    if init not in POLICIES and (kind := _kind_of(init, "config.json")) not in ("file", "folder"):
        raise UsageError(
            f"policy.init={_cut(init)} {kind}; give a Hugging Face folder, the path of a .gguf or an .npz, "
            f"{_listed(EMBEDDED)} for an embedded warm start, or 'scratch'"
        )
    if tokenizer == "policy":
        if init in (*EMBEDDED, "scratch") or init.endswith(".npz"):
            raise UsageError(
                f"tokens.tokenizer=policy, but policy.init={_cut(init)} brings no tokenizer; give 'tiny' or a path"
            )
    elif tokenizer not in EMBEDDED and (kind := _kind_of(tokenizer, "tokenizer.json")) not in ("file", "folder"):
        raise UsageError(
            f"tokens.tokenizer={_cut(tokenizer)} {kind}; give the path of a SentencePiece .model or a .gguf, a folder "
            f"with tokenizer.json, 'policy' for what comes with policy.init, {_listed(EMBEDDED)}"
        )


def _listed(names: Sequence[str]) -> str:
    """'a', 'b' or 'c'."""
    *most, last = map(repr, names)
    return f"{', '.join(most)} or {last}"


def _kind_of(name: str, inside: str = "") -> str:
    """ "file", "folder", or what is wrong with a path, as the rest of a sentence.

    Args:
      name: the path.
      inside: a file that a folder must hold.
    """
    try:
        mode = os.stat(name).st_mode
        readable = os.access(name, os.R_OK | os.X_OK if stat.S_ISDIR(mode) else os.R_OK)
    except FileNotFoundError:
        return "does not exist"
    except OSError as error:
        return f"cannot be reached ({error.strerror})"
    except ValueError as error:  # a NUL, say
        return f"is no path ({error})"
    if not readable:
        return "may not be read"
    if stat.S_ISDIR(mode):
        return "folder" if os.path.exists(os.path.join(name, inside)) else f"is a folder without {inside}"
    return "file" if stat.S_ISREG(mode) else "is neither a file nor a folder"


def check_processes(config: ConfigDict, processes: int) -> None:
    """Checks what several processes cannot do.

    Raises:
      UsageError: more than one update may lag, though they exchange what they drew only when none is under way.
    """
    if config.rollout.max_staleness > 1 and processes > 1:
        raise UsageError(
            f"rollout.max_staleness={config.rollout.max_staleness} is more than {processes} processes can keep up, "
            "which exchange what they drew before the next update begins; use 1, or 0"
        )


def check_cache(config: ConfigDict, needed: int, available: int) -> None:
    """Checks that the sampler's KV cache can exist at all; what else must fit beside it is not known before it runs.

    Args:
      config: the config.
      needed: bytes of the cache.
      available: bytes of memory of all devices.

    Raises:
      UsageError: it cannot.
    """
    if needed > available:
        raise UsageError(
            f"sampler.slots={config.sampler.slots} of sampler.context={config.sampler.context} need a cache of "
            f"{needed / 2**30:.1f} GiB, but there are {available / 2**30:.1f} GiB of memory; lower either"
        )


def check_mesh(sizes: dict[str, int], dimensions: dict[str, int]) -> None:
    """Checks that the tensor and fsdp axes divide what they shard.

    Args:
      sizes: of the mesh axes.
      dimensions: the policy's num_heads, num_kv_heads, mlp_dim, vocab_size, embed_dim and num_experts.

    Raises:
      UsageError: a dimension that its mesh axis does not divide.
    """
    for axis, names in (
        ("tensor", ("num_heads", "num_kv_heads", "mlp_dim", "vocab_size")),
        ("fsdp", ("embed_dim",)),
        ("expert", ("num_experts",)),
    ):
        for name in names:
            if name == "num_experts" and not dimensions[name]:
                continue  # then the axis holds rows only
            if dimensions[name] % sizes[axis]:
                common = math.gcd(*(dimensions[n] for n in names))
                usable = [str(d) for d in range(1, common + 1) if common % d == 0 and d <= 4 * sizes[axis]]
                raise UsageError(
                    f"mesh.{axis}={sizes[axis]} does not divide the policy's {name}={dimensions[name]}; "
                    f"use {_either(usable)}"
                )


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _shown(value: Any) -> str:
    return _cut(repr(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _at_most(config: ConfigDict, key: str, limit: int, what: str) -> None:
    value = get_key(config, key)
    if value > limit:
        raise UsageError(f"{key}={value} is above {what}; use at most {limit}")


def _either(choices: Any) -> str:
    choices = list(choices)
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
