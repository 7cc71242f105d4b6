"""The trainer: one language model trains itself by self-play.

    python -m spade_jax.train --config=configs/spade_tiny.py --workdir=DIR

`spade` reads as the algorithm: SPADE (arXiv 2608.19197), in which the model designs
environments and learns to act in them, with the deviations that `configs/base.py` lists
as switches. `spiral.py` is the same for SPIRAL, zero-sum games against itself. A run
that is killed goes on from its newest checkpoint when the same command is given again,
and ends in the same bits, unless rollouts may overlap updates (`rollout.max_staleness`).
"""

from __future__ import annotations

import contextlib
import functools
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
from spade_jax.reporting.write import write_report
from spade_jax.rollout import episodes as episodes_lib
from spade_jax.rollout import measure, regenerate
from spade_jax.rollout.design import Design
from spade_jax.rollout.trajectories import conversation_trajectory, training_set
from spade_jax.runtime import app, checks, distributed, hosts, seeds, texts, transcripts
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.progress import SPADE
from spade_jax.runtime.workdir import local_folder
from spade_jax.sampler import Engine
from spade_jax.sandbox import Pool
from spade_jax.session import Session
from spade_jax.spiral import spiral
from spade_jax.tokens.chat import ChatTemplate

_CONFIG = config_flags.DEFINE_config_file("config", None, "The configuration, e.g. configs/spade_tiny.py.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run: checkpoints, metrics, environments, transcripts.")


def main(argv: Sequence[str]) -> None:
    del argv
    config, workdir = resolve_preset(_CONFIG.value), local_folder("workdir", _WORKDIR.value)
    checks.check_config(config)
    with contextlib.ExitStack() as stack:
        stack.enter_context(compose.sandbox_failures())
        finished = {"spade": spade, "spiral": spiral}[config.method.algorithm](stack, config, workdir)
    if not finished or not hosts.is_first():
        return
    print(f"report: {write_report(workdir)}")
    print(f"curves: tensorboard --logdir {workdir}/metrics")


def spade(stack: contextlib.ExitStack, config: ConfigDict, workdir: str) -> bool:
    """Designed environments, hint regret, both roles on shared weights; False where it was asked to stop early."""
    window, run_seed = config.rollout.regenerate_every, config.run.seed
    rng = functools.partial(seeds.host_rng, run_seed)

    # ==================================================================
    # Start. The order matters: the sandbox forks before JAX has threads.
    # Resume: (1) train and host state of the newest checkpoint, (2) later metrics
    # forgotten, (3) the store of environments rolled back to it.
    # ==================================================================
    pool = compose.sandbox_pool(config)
    stack.callback(pool.shutdown)
    template, documents = compose.chat_template(config), compose.documents(config)
    session = Session(stack, config, workdir, template)
    contained = compose.sandbox_line(config, pool)
    session.say(contained)
    memory = stack.enter_context(compose.memory(config, workdir))
    delayed, cursor, in_play = DelayedQueue(window), documents.start(), []
    if host := session.restored:
        cursor = compose.cursor(config, documents, host["cursor"], host["corpus"])
        delayed.load(host["delayed"])
    session.begin(contained, SPADE, ("eval/probe/all", "designer/regret", "agent/win_rate"))
    compose.share_memory(memory, session.first_step)
    if host:
        in_play = compose.in_play(memory, host["in_play"])
    engine = session.engine
    playing, designing = compose.episode_settings(config), compose.design_settings(config)
    probing, rewarding = compose.probe_settings(config), compose.reward_config(config)
    probe = compose.probe(config, config.evaluation.instances)

    for step in range(session.first_step, config.run.steps):
        session.begin_step(step)
        log: dict[str, float] = {}

        # ==============================================================
        # 0. How good is the policy on what it never trains on?
        # ==============================================================
        if config.evaluation.every_steps and step % config.evaluation.every_steps == 0:
            with session.phase("evaluate", step):
                session.catch_up()
                log |= evaluate(engine, pool, template, probe, probing)

        # ==============================================================
        # 1. Every `window` steps the designer writes environments, the gate
        # checks them, and a separate call writes their hints.
        # ==============================================================
        regeneration = None
        if step % window == 0:
            with session.phase("design", step):
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
        # the same seeds and, unless updates may lag, with the same weights.
        # ==============================================================
        with session.phase("play", step):
            requests = episodes_lib.paired_requests(
                in_play,
                step=step,
                first_index=step * config.rollout.seeds,  # never an instance that was trained on
                seeds=config.rollout.seeds,
                paired=config.method.paired_seeds,
            )
            episodes = episodes_lib.play_episodes(
                engine, pool, template, requests, playing, deadline_secs=config.rollout.deadline_secs
            )

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
        # 5. Role-conditioned advantages; one update of the shared policy, which
        # `rollout.max_staleness` lets go on behind the next rollout.
        # ==============================================================
        with session.phase("update", step):
            sequences = training_set(
                in_play, episodes, paid, playing.sampling.temperature, oldest=step - config.learner.max_staleness
            )
            written = len(sequences) - len(paid)  # from here on they are the designer's
            advantages, keep, baselines = session.estimate(
                [sequence.episode_return for sequence in sequences],
                [sequence.role for sequence in sequences],
                [sequence.group for sequence in sequences],
                [sequence.weight > 0 for sequence in sequences],
            )
            rejected = np.array([payment.rejected for payment in paid], bool)
            capped = reward.cap_invalid_share(advantages[written:], rejected, rewarding)
            advantages = np.concatenate([advantages[:written], capped])
            session.learn(sequences, advantages, keep, baselines)

        # ==============================================================
        # 6. Write down what happened; then checkpoint.
        # ==============================================================
        log |= measure.performance(
            session.take_counters(), episodes, play_seconds=session.timers.seconds("play")
        )
        log["memory/size"] = len(memory)
        if session.first:
            with session.phase("write", step):
                write_texts(config, workdir, session, step, regeneration, in_play, episodes)
        host = {
            "cursor": cursor,
            "corpus": documents.fingerprint,
            "delayed": delayed.state(),
            # With its hint: a program that was written twice may have had two.
            "in_play": [[record.id, record.hint] for record in in_play],
        }
        if session.finish(step, log, host):
            return False

    # The policy that came out, on what it never trained on.
    if config.evaluation.every_steps:
        session.begin_step(config.run.steps)
        with session.phase("evaluate", config.run.steps - 1):
            session.log_scalars(config.run.steps, evaluate(engine, pool, template, probe, probing))
    return True


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
    session: Session,
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
        session.log_text(step, "designer/program", texts.program(record))
    if in_play:
        hints = {record.id: record.hint for record in in_play}
        for episode in by_seed[:2]:  # the plain and the hinted play of one seed
            tag = "agent/transcript" if episode.arm == structs.PLAIN else "agent/transcript_hinted"
            session.log_text(step, tag, texts.transcript(episode, hints[episode.environment_id]))


def run() -> None:
    flags.mark_flags_as_required(["config", "workdir"])
    distributed.define_flags()
    app.run(main)


if __name__ == "__main__":
    run()
