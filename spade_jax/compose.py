"""From the config tree to each room's own settings: what the binaries share in assembling a run."""

from __future__ import annotations

import dataclasses
import pathlib
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from spade_jax import structs
from spade_jax.designer import corpus, gate, reward, schedule
from spade_jax.designer import memory as memory_lib
from spade_jax.learner import batch, objective, partitioning
from spade_jax.learner import state as state_lib
from spade_jax.learner import step as step_lib
from spade_jax.policy import Decoder, DecoderConfig, load_params
from spade_jax.rollout import regenerate
from spade_jax.rollout.design import DesignSettings
from spade_jax.rollout.episodes import EpisodeSettings
from spade_jax.runtime import checks
from spade_jax.runtime.errors import RunError, UsageError
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sandbox import Limits, Pool, SandboxError
from spade_jax.tokens import chat
from spade_jax.tokens import tokenizer as tokenizer_lib

EMBEDDED = pathlib.Path(__file__).parent / "assets" / "tiny"
TOKENIZER_FILE = "tokenizer.model"
POLICY_FILE = "policy.npz"
ENVIRONMENTS_FILE = "environments.sqlite"


def sandbox_pool(config: ConfigDict) -> Pool:
    """The sandbox; call before JAX initialises a device."""
    try:
        return Pool(
            Limits(**config.sandbox.limits.to_dict()),
            isolation=config.sandbox.isolation,
            max_live=config.sandbox.max_live,
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SandboxError as error:
        raise RunError(str(error)) from error


def chat_template(config: ConfigDict) -> chat.ChatTemplate:
    """The tokenizer's chat template."""
    path = EMBEDDED / TOKENIZER_FILE if config.tokens.tokenizer == "tiny" else pathlib.Path(config.tokens.tokenizer)
    try:
        return chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(path))
    except (OSError, RuntimeError, ValueError, KeyError) as error:  # SentencePiece raises RuntimeError
        raise UsageError(
            f"tokens.tokenizer={config.tokens.tokenizer} cannot be used ({error}); use tiny, or a SentencePiece "
            ".model with our control tokens"
        ) from error


def policy(config: ConfigDict, template: chat.ChatTemplate) -> tuple[Decoder, Any]:
    """The network and its initial host weights; None for a random start."""
    execution = dict(dtype=config.policy.dtype, remat=config.policy.remat)
    if config.policy.init == "scratch":
        shape, params = DecoderConfig(**config.policy.architecture.to_dict()), None
    else:
        path = EMBEDDED / POLICY_FILE if config.policy.init == "tiny" else pathlib.Path(config.policy.init)
        try:
            if not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
                raise ValueError("it is not an .npz, or not a whole one")
            params, shape = load_params(path)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(
                f"policy.init={config.policy.init} cannot be read ({error}); use tiny, scratch, or an .npz of weights"
            ) from error
    if shape.vocab_size != template.tokenizer.vocab_size:
        raise UsageError(
            f"policy.init={config.policy.init} has a vocabulary of {shape.vocab_size}, tokens.tokenizer="
            f"{config.tokens.tokenizer} one of {template.tokenizer.vocab_size}; give a pair that belongs together"
        )
    return Decoder(dataclasses.replace(shape, **execution)), params


def sampling(section: ConfigDict) -> SamplingConfig:
    """One role's sampling distribution."""
    return SamplingConfig(
        temperature=section.temperature, top_k=section.top_k, top_p=section.top_p, min_p=section.min_p
    )


def episode_settings(config: ConfigDict) -> EpisodeSettings:
    """How the agent plays in training."""
    return EpisodeSettings(
        sampling=sampling(config.sampler.agent),
        max_turns=config.rollout.max_turns,
        max_new_tokens=config.sampler.agent.max_new_tokens,
        context=config.sampler.context,
        style=config.designer.style,
        reply_blocks=config.rollout.reply_blocks,
        max_live=config.sandbox.max_live,
        truncated_scores_zero=config.method.truncated_scores_zero,
        crashes_are_void=config.method.void_crashes,
    )


def design_settings(config: ConfigDict) -> DesignSettings:
    """How the designer writes."""
    return DesignSettings(
        sampling=sampling(config.sampler.designer),
        max_new_tokens=config.sampler.designer.max_new_tokens,
        hint_sampling=sampling(config.sampler.hint),
        hint_max_new_tokens=config.sampler.hint.max_new_tokens,
        attempts=config.designer.attempts,
        style=config.designer.style,
        gate=gate.GateConfig(kind=config.rollout.kind, max_turns=config.rollout.max_turns, **config.gate.to_dict()),
    )


def reward_config(config: ConfigDict) -> reward.RewardConfig:
    """The designer's reward."""
    method = config.method
    return reward.RewardConfig(
        paired=method.paired_seeds,
        min_pairs=config.rollout.min_pairs,
        floor_regret=method.regret_floor,
        adaptive_scale=method.regret_scale == "adaptive",
        seed_variance_penalty=method.plateau_correction,
        cap_unverified=method.cap_unverified,
        failure_rewards=method.invalid_penalty,
        invalid_share_cap=method.invalid_share_cap,
    )


def memory(config: ConfigDict, workdir: str) -> memory_lib.Memory:
    """The designer's memory, in the workdir's store of environments."""
    settings = memory_lib.MemoryConfig(
        capacity=config.memory.capacity,
        ranked_by_lower_bound=config.memory.rank == "lower_bound",
        cells=config.memory.eviction == "cells",
    )
    try:
        return memory_lib.Memory(pathlib.Path(workdir) / ENVIRONMENTS_FILE, settings)
    except ValueError as error:
        raise UsageError(str(error)) from error


def in_play(memory: memory_lib.Memory, saved: Sequence[tuple[str, str]]) -> list[structs.EnvironmentRecord]:
    """The programs that a checkpoint says are being played, (id, hint) each, from the store beside it."""
    records = {id_: memory.get(id_) for id_, _ in saved}
    missing = [id_ for id_, record in records.items() if record is None]
    if missing:
        raise RunError(
            f"{memory.path} lacks {len(missing)} program(s) that the newest checkpoint plays, so it was removed or "
            "is of another run; restore it, or start in another workdir"
        )
    return [dataclasses.replace(records[id_], hint=hint) for id_, hint in saved]


def engine(config: ConfigDict, model: Decoder, params: Any, template: chat.ChatTemplate, device_mesh: Mesh) -> Engine:
    """The sampler."""
    return Engine(
        model,
        params,
        slots=config.sampler.slots,
        context=config.sampler.context,
        block=config.sampler.block,
        stop_token=template.tokenizer.end_id,
        run_seed=config.run.seed,
        mesh=device_mesh,
        cache_dtype=config.sampler.cache_dtype,
    )


def probe_settings(config: ConfigDict) -> EpisodeSettings:
    """How the agent plays the held-out probe: as in training but for the temperature."""
    playing = episode_settings(config)
    return dataclasses.replace(
        playing, sampling=dataclasses.replace(playing.sampling, temperature=config.evaluation.temperature)
    )


def documents(config: ConfigDict) -> corpus.Corpus:
    """The designer's documents."""
    section = config.corpus
    try:
        if section.path == "builtin":
            loaded = corpus.load_pydoc(section.chunk_words, deduplicate=section.deduplicate)
        else:
            loaded = corpus.load_path(
                section.path,
                section.chunk_words,
                skip_bad=section.skip_bad_records,
                deduplicate=section.deduplicate,
            )
    except (OSError, ValueError) as error:
        raise UsageError(f"corpus.path={section.path}: {error}") from error
    if loaded.skipped:
        print(f"corpus: skipped {loaded.skipped} bad records", flush=True)
    return corpus.Corpus(
        {section.path: loaded.documents},
        {section.path: 1.0},
        config.run.seed,
        replacement=section.draw == "uniform",
    )


def cursor(config: ConfigDict, documents: corpus.Corpus, saved: corpus.Cursor) -> corpus.Cursor:
    """A checkpoint's place in the documents, checked against those that are there now."""
    try:
        documents.check(saved)
    except ValueError as error:
        raise UsageError(
            f"corpus.path={config.corpus.path} is not what this run began with ({error}); restore it, or start in "
            "another workdir"
        ) from error
    return saved


def optimizer_config(config: ConfigDict) -> state_lib.OptimizerConfig:
    """The learner's optimiser."""
    return state_lib.OptimizerConfig(**config.learner.optimizer.to_dict())


def train_state(config: ConfigDict, model: Decoder, optimizer: Any, device_mesh: Mesh, params: Any) -> Any:
    """A fresh train state, from `params` or, where they are None, from random weights."""
    return state_lib.init_state(
        model, optimizer, device_mesh, seed=config.run.seed, num_baselines=num_groups(config), params=params
    )


def update_config(config: ConfigDict) -> step_lib.UpdateConfig:
    """The learner's update."""
    section = config.learner
    return step_lib.UpdateConfig(
        objective=objective.ObjectiveConfig(
            clip_low=section.clip_low,
            clip_high=section.clip_high,
            tis_cap=section.tis_cap,
            kl_coefficient=section.kl_coefficient,
            aggregation=section.aggregation,
            constant_length=section.constant_length,
            role_weight=tuple(section.role_weight[role] for role in structs.ROLES),
        ),
        chunk=section.vocab_chunk,
    )


def estimators(config: ConfigDict) -> tuple[str, ...]:
    """The advantage estimator of each role, in the order of `structs.ROLES`."""
    return tuple(config.learner.estimator[role] for role in structs.ROLES)


def num_groups(config: ConfigDict) -> int:
    """Bound of the group ids: places of a regeneration for the agent, skills for the designer."""
    return max(config.rollout.active_skills * config.rollout.places_per_skill, len(config.rollout.skills))


def mesh(config: ConfigDict, model: Decoder) -> Mesh:
    """The device mesh; starts JAX's backend."""
    sizes = checks.resolve_mesh(config.mesh, jax.device_count())
    checks.check_mesh(sizes, dataclasses.asdict(model.config))
    return partitioning.make_mesh(**sizes)


def buckets(config: ConfigDict, device_mesh: Mesh) -> batch.BucketConfig:
    """The shapes of training batches."""
    return batch.BucketConfig(
        lengths=tuple(config.learner.buckets),
        tokens_per_micro_batch=config.learner.micro_batch_tokens,
        row_multiple=partitioning.batch_shards(device_mesh),
        processes=jax.process_count(),
    )


def regeneration_settings(config: ConfigDict, regeneration: int) -> regenerate.RegenerationSettings:
    """What the designer is asked for at the `regeneration`-th regeneration."""
    return regenerate.RegenerationSettings(
        skills=schedule.active_skills(config.rollout.skills, regeneration, config.rollout.active_skills),
        places_per_skill=config.rollout.places_per_skill,
        exemplars=config.designer.exemplars,
        negatives=config.designer.negatives,
        replay_share=config.memory.replay_share,
        document_words=config.designer.document_words,
        context=config.sampler.context,
    )
