"""The trainer: one language model designs environments and learns to act in them.

    python -m spade_jax.train --config=configs/spade_tiny.py --workdir=DIR

`main` reads as the algorithm: SPADE (arXiv 2608.19197) with the deviations that
`configs/base.py` lists as switches. A run that is killed goes on from its newest
checkpoint when the same command is given again, and ends in the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence

import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from spade_jax import compose, structs
from spade_jax.designer import reward
from spade_jax.designer.delayed import DelayedQueue, Waiting
from spade_jax.designer.payment import pay
from spade_jax.envs.bundled import Bundled
from spade_jax.evals.probe import play_probe, probe_metrics
from spade_jax.learner import advantage, batch
from spade_jax.learner import state as state_lib
from spade_jax.learner import step as step_lib
from spade_jax.policy import count_active_params
from spade_jax.reporting.write import write_report
from spade_jax.rollout import episodes as episodes_lib
from spade_jax.rollout import measure, regenerate
from spade_jax.rollout.design import Design
from spade_jax.rollout.trajectories import conversation_trajectory, training_set
from spade_jax.runtime import app, checks, compile_cache, metrics, seeds, texts, transcripts
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.presets import get_key, resolve_preset
from spade_jax.runtime.progress import Cadence, Progress
from spade_jax.runtime.shutdown import Shutdown
from spade_jax.runtime.workdir import WorkdirLock, compare_config, write_config
from spade_jax.sampler import Engine
from spade_jax.sandbox import Pool
from spade_jax.tokens.chat import ChatTemplate

_CONFIG = config_flags.DEFINE_config_file("config", None, "The configuration, e.g. configs/spade_tiny.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: checkpoints, metrics, environments, transcripts.")

# What TensorBoard's hparams page tabulates: the keys that sweeps vary most.
HPARAMS = (
    "run.seed",
    "method.preset",
    "rollout.environments",
    "rollout.seeds",
    "rollout.regenerate_every",
    "sampler.agent.temperature",
    "learner.optimizer.learning_rate",
    "learner.role_weight.designer",
    "learner.kl_coefficient",
)


def main(argv: Sequence[str]) -> None:
    del argv
    config, workdir = resolve_preset(_CONFIG.value), os.path.abspath(_WORKDIR.value)
    checks.check_config(config)
    window, run_seed = config.rollout.regenerate_every, config.run.seed
    rng = functools.partial(seeds.host_rng, run_seed)

    with contextlib.ExitStack() as stack:
        # ==================================================================
        # Start. The order matters: the sandbox forks before JAX has threads,
        # and nothing is compiled before the config has been accepted.
        # ==================================================================
        stack.enter_context(WorkdirLock(workdir))
        for difference in compare_config(workdir, config):
            print(f"config changed: {difference}", flush=True)
        pool = compose.sandbox_pool(config)
        stack.callback(pool.shutdown)
        contained = compose.sandbox_line(config, pool)
        print(contained, flush=True)
        template, documents = compose.chat_template(config), compose.documents(config)
        compile_cache.enable_compile_cache(config.compile_cache.dir)
        compilations = metrics.CompilationCounter()

        model, initial_params = compose.policy(config, template)
        mesh = compose.mesh(config, model)
        optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
        state = compose.train_state(config, model, optimizer, mesh, initial_params)
        update = step_lib.make_update(model, optimizer, mesh, compose.update_config(config))
        buckets = compose.buckets(config, mesh)
        # Taken before a checkpoint is restored: the reference is the policy the run began with.
        reference = state_lib.copy_params(state.params) if config.learner.kl_coefficient > 0 else None
        num_params = count_active_params(state.params, model.config)

        # Resume: (1) train and host state of the newest checkpoint, (2) the store of
        # environments rolled back to it, (3) later metrics forgotten.
        checkpointer = stack.enter_context(Checkpointer(f"{workdir}/checkpoints", keep=config.checkpoint.keep))
        memory = stack.enter_context(compose.memory(config, workdir))
        delayed, cursor, in_play, first_step = DelayedQueue(window), documents.start(), [], 0
        if restored := checkpointer.restore(state):
            state, host, first_step = restored.state, restored.host, restored.step
            cursor = compose.cursor(config, documents, host["cursor"], host["corpus"])
            delayed.load(host["delayed"])
        write_config(workdir, config)  # not earlier: a start that was refused must not bind the workdir to its config
        memory.rollback(first_step - 1)
        if restored:
            in_play = compose.in_play(memory, host["in_play"])
        writer = metrics.MetricWriter(f"{workdir}/metrics", start_step=first_step)
        stack.callback(writer.close)
        if not restored:
            writer.text(0, "config", metrics.code_block(f"# {contained}\n{config.to_yaml()}", "yaml"))
            shown = {key: get_key(config, key) for key in HPARAMS}
            writer.hparams(shown, ("eval/probe/all", "designer/regret", "agent/win_rate"), os.path.basename(workdir))

        engine = compose.engine(config, model, state.params, template, mesh)
        playing, designing = compose.episode_settings(config), compose.design_settings(config)
        probing, rewarding = compose.probe_settings(config), compose.reward_config(config)
        probe = compose.probe(config, config.evaluation.instances)
        timers, progress = metrics.Timers(), Progress(first_step, config.run.steps)
        saving = Cadence(config.checkpoint.save_steps, config.checkpoint.save_secs)
        shutdown = stack.enter_context(Shutdown())

        for step in range(first_step, config.run.steps):
            engine.set_params(state.params, version=step)
            log: dict[str, float] = {}

            # ==============================================================
            # 0. How good is the policy on what it never trains on?
            # ==============================================================
            if config.evaluation.every_steps and step % config.evaluation.every_steps == 0:
                with timers.phase("evaluate"), progress.phase("evaluate", step):
                    log |= evaluate(engine, pool, template, probe, probing)

            # ==============================================================
            # 1. Every `window` steps the designer writes environments, the gate
            # checks them, and a separate call writes their hints.
            # ==============================================================
            regeneration = None
            if step % window == 0:
                with timers.phase("design"), progress.phase("design", step):
                    if config.rollout.environments == "bundled":
                        places = config.rollout.active_skills * config.rollout.places_per_skill
                        regeneration = regenerate.bundled(
                            places, step // window, cursor, seed=run_seed, kind=config.rollout.kind
                        )
                        memory.add(step, regeneration.in_play)  # a resumed run reads them back by id
                    else:
                        regeneration = regenerate.regenerate(
                            engine, pool, template, memory, documents, cursor,
                            compose.regeneration_settings(config, step // window), designing, step=step, rng=rng,
                        )  # fmt: skip
                cursor, in_play = regeneration.cursor, regeneration.in_play
                log |= regenerate.design_metrics(regeneration, memory)
                memory.add(step, [design.record for design in regeneration.designs])
                for sample in regeneration.first_attempts():  # retries only fill the pool
                    delayed.push(waiting(sample, step, config.rollout.skills, designing.sampling.temperature))

            # ==============================================================
            # 2. The agent plays every environment with and without its hint, on
            # the same seeds and with the same weights.
            # ==============================================================
            with timers.phase("play"), progress.phase("play", step):
                requests = episodes_lib.paired_requests(
                    in_play,
                    step=step,
                    first_index=step * config.rollout.seeds,  # never an instance that was trained on
                    seeds=config.rollout.seeds,
                    paired=config.method.paired_seeds,
                )
                episodes = episodes_lib.play_episodes(engine, pool, template, requests, playing)

            # ==============================================================
            # 3. Regret: what the hint is worth, seed by seed.
            # ==============================================================
            plays = measure.measure([record.id for record in in_play], episodes)
            for environment in plays:
                delayed.observe(environment.environment_id, *environment.paired())
            statistics, regret_log = measure.regret_statistics(
                plays, rewarding, seeds.array_rng(run_seed, "null", step)
            )
            memory.record_statistics(step, statistics)
            log |= regret_log | measure.agent_metrics(episodes)

            # ==============================================================
            # 4. Designer samples whose window ends now are paid.
            # ==============================================================
            paid, reward_log = pay(delayed.release(step), rewarding)
            log |= reward_log

            # ==============================================================
            # 5. Role-conditioned advantages; one update of the shared policy.
            # ==============================================================
            with timers.phase("update"), progress.phase("update", step):
                sequences = training_set(
                    in_play, episodes, paid, playing.sampling.temperature, oldest=step - config.learner.max_staleness
                )
                written = len(sequences) - len(paid)  # from here on they are the designer's
                advantages, keep, baselines = advantage.estimate_on_hosts(
                    mesh,
                    np.array([sequence.episode_return for sequence in sequences]),
                    np.array([sequence.role for sequence in sequences]),
                    np.array([sequence.group for sequence in sequences]),
                    np.array([sequence.weight > 0 for sequence in sequences]),
                    state.baselines,
                    estimators=compose.estimators(config),
                    num_groups=compose.num_groups(config),
                )
                rejected = np.array([payment.rejected for payment in paid], bool)
                capped = reward.cap_invalid_share(advantages[written:], rejected, rewarding)
                advantages = np.concatenate([advantages[:written], capped])
                sequences = [dataclasses.replace(s, weight=float(k)) for s, k in zip(sequences, keep, strict=True)]
                minibatches, packing = batch.pack(
                    sequences, advantages, buckets, minibatches=config.learner.optimizer_steps
                )
                state, update_log = update(state._replace(baselines=baselines), minibatches, reference)

            # ==============================================================
            # 6. Write down what happened; then checkpoint.
            # ==============================================================
            log |= update_log | measure.performance(
                engine.take_counters(),
                episodes,
                play_seconds=timers.seconds("play"),
                update_seconds=timers.seconds("update"),
                trained_tokens=packing.tokens,
                num_params=num_params,
            )
            log |= timers.take() | {"perf/compilations": compilations.count, "memory/size": len(memory)}
            writer.scalars(step, log)
            write_texts(config, workdir, writer, step, regeneration, in_play, episodes)
            progress.line(step, log)
            finished = step + 1 == config.run.steps
            if saving.due(step + 1) or finished or shutdown.requested:
                # With its hint: a program that was written twice may have had two.
                playing_now = [[record.id, record.hint] for record in in_play]
                host = {
                    "cursor": cursor,
                    "corpus": documents.fingerprint,
                    "delayed": delayed.state(),
                    "in_play": playing_now,
                }
                checkpointer.save(step + 1, state, host)
            if shutdown.requested and not finished:
                print(f"stopped after step {step + 1} with a checkpoint; the same command goes on", flush=True)
                return

        # The policy that came out, on what it never trained on.
        if config.evaluation.every_steps:
            engine.set_params(state.params, version=config.run.steps)
            with progress.phase("evaluate", config.run.steps - 1):
                writer.scalars(config.run.steps, evaluate(engine, pool, template, probe, probing))
    print(f"report: {write_report(workdir)}")
    print(f"curves: tensorboard --logdir {workdir}/metrics")


def waiting(design: Design, step: int, skills: Sequence[str], temperature: float) -> Waiting:
    """A designer sample that waits to be paid; samples of one skill are compared with each other."""
    return Waiting(
        environment_id=design.record.id,
        skill=design.assignment.skill,
        written_step=step,
        failure=design.record.report.failure,
        solvable=design.record.report.solvable,
        trajectory=conversation_trajectory(
            design.episode, group=skills.index(design.assignment.skill), temperature=temperature
        ),
    )


def evaluate(
    engine: Engine, pool: Pool, template: ChatTemplate, probe: Sequence[Bundled], settings: episodes_lib.EpisodeSettings
) -> dict[str, float]:
    """Win rates on the held-out probe; the same keys at every step, so that policies are compared on pairs."""
    return probe_metrics(probe, play_probe(engine, pool, template, probe, settings, label="probe"))


def write_texts(
    config: ConfigDict,
    workdir: str,
    writer: metrics.MetricWriter,
    step: int,
    regeneration: regenerate.Regeneration | None,
    in_play: Sequence[structs.EnvironmentRecord],
    episodes: Sequence[structs.Episode],
) -> None:
    """Transcripts of the step to the workdir; a program and a pair of transcripts to TensorBoard."""
    by_seed = sorted(episodes, key=lambda episode: (episode.seed_index, episode.environment_id, episode.arm))
    if config.log.transcripts:
        transcripts.write_transcripts(f"{workdir}/transcripts", step, by_seed[: config.log.transcripts])
    if step % config.log.text_steps:
        return
    if regeneration and regeneration.designs:
        record = next((d.record for d in regeneration.designs if d.valid), regeneration.designs[0].record)
        writer.text(step, "designer/program", texts.program(record))
    if in_play:
        hints = {record.id: record.hint for record in in_play}
        for episode in by_seed[:2]:  # the plain and the hinted play of one seed
            tag = "agent/transcript" if episode.arm == structs.PLAIN else "agent/transcript_hinted"
            writer.text(step, tag, texts.transcript(episode, hints[episode.environment_id]))


def run() -> None:
    flags.mark_flags_as_required(["config", "workdir"])
    app.run(main)


if __name__ == "__main__":
    run()
