"""What every training loop has, whichever its method: the policy, its update, the sampler, checkpoints and metrics.

The loops (`train.py`, `spiral.py`) are the methods; this is the machinery that they share.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import os
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from spade_jax import compose, structs
from spade_jax.learner import advantage, batch, partitioning, publish
from spade_jax.learner import state as state_lib
from spade_jax.learner import step as step_lib
from spade_jax.policy import count_active_params
from spade_jax.rollout import measure
from spade_jax.runtime import checks, compile_cache, distributed, hosts, metrics
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.flops import describe_devices, training_flops
from spade_jax.runtime.pacing import Pacer
from spade_jax.runtime.presets import get_key
from spade_jax.runtime.profiling import Profiler
from spade_jax.runtime.progress import Cadence, Column, Progress
from spade_jax.runtime.shutdown import Shutdown
from spade_jax.runtime.workdir import WorkdirLock, compare_config, refuse_foreign, write_config
from spade_jax.sampler import Counters
from spade_jax.tokens.chat import ChatTemplate

# What TensorBoard's hparams page tabulates: the keys that sweeps vary most.
HPARAMS = (
    "run.seed",
    "method.preset",
    "rollout.environments",
    "rollout.seeds",
    "rollout.regenerate_every",
    "selfplay.opponent",
    "selfplay.baselines",
    "sampler.agent.temperature",
    "learner.estimator.agent",
    "learner.optimizer.learning_rate",
    "learner.role_weight.designer",
    "learner.kl_coefficient",
)


@dataclasses.dataclass(frozen=True)
class _Report:
    """What is to be written down of a step once its update has ended.

    Attributes:
      step: its number.
      log: {tag: value} of it, but for the update's.
      host: the method's own state behind it, for a checkpoint; None where none is due.
    """

    step: int
    log: dict[str, float]
    host: dict[str, Any] | None


class Session:
    """A run under way; made once its config has been accepted.

    Of several processes each has one, and calls the same methods in the same order. What is written, the first writes.

    With `rollout.max_staleness` an update goes on behind what follows: see `runtime/pacing.py`.

    Attributes:
      first: whether this process is the one that writes metrics, transcripts and lines.
      initial_params: host weights that the run began with; None for random ones.
      model: the network.
      template: the chat template.
      engine: the sampler, on this process's own devices.
      sampler_mesh: those devices.
      launching: what a sampler on them holds while it launches a program.
      sampler_params: what it draws with: the weights behind the last update that has ended.
      restored: host state of the newest checkpoint, None in a new workdir.
      first_step: the step to begin with.
      flops_per_token: of an update.
      timers: of the phases of a step.
    """

    def __init__(
        self,
        stack: contextlib.ExitStack,
        config: ConfigDict,
        workdir: str,
        template: ChatTemplate,
    ):
        self._config, self._workdir, self._stack, self.template = config, workdir, stack, template
        distributed.join(distributed.read_plan())  # before JAX looks for devices
        checks.check_processes(config, jax.process_count())
        self.first = hosts.is_first()
        hosts.from_first(self._claim_workdir)
        compile_cache.enable_compile_cache(config.compile_cache.dir)
        self._compilations = metrics.CompilationCounter()
        self.model, self.initial_params = compose.policy(config, template)
        self.mesh = compose.mesh(config, self.model)
        optimizer = state_lib.make_optimizer(compose.optimizer_config(config), self.model)
        state = compose.train_state(config, self.model, optimizer, self.mesh, self.initial_params)
        ahead = config.rollout.max_staleness
        overlapping = ahead > 0 and jax.local_device_count() > 1
        self.launching = threading.Lock() if overlapping else contextlib.nullcontext()
        self._update = step_lib.make_update(
            self.model, optimizer, self.mesh, compose.update_config(config), launching=self.launching
        )
        self._buckets = compose.buckets(config, self.mesh)
        # Taken before a checkpoint is restored: the reference is the policy the run began with.
        needs_reference = config.learner.kl_coefficient > 0
        trained, frozen = state_lib.split_trained(self.model, state.params)
        self._reference = state_lib.copy_params(trained) if needs_reference else None
        counts = (count_active_params(part, self.model.config) for part in (trained, frozen))
        self.flops_per_token = training_flops(*counts)
        self.say(describe_devices())
        self.sampler_mesh = publish.local_mesh(self.mesh)
        # Those in int8, and those with adapters, are made from what they are made from in one process.
        plain = config.sampler.weight_dtype == "policy" and self.model.config.lora is None
        self._publish = publish.make_publish(
            self.model, self.mesh, self.model.config.dtype if plain else None, outlives_update=ahead > 0
        )
        self._shutdown = stack.enter_context(Shutdown())
        keeping = {"keep": config.checkpoint.keep, "keep_period": config.checkpoint.keep_period}
        folder = config.checkpoint.dir or f"{workdir}/checkpoints"
        self._checkpointer = stack.enter_context(Checkpointer(folder, **keeping))
        hosts.from_first(lambda: refuse_foreign(workdir, config, self._checkpointer.latest_step()))
        self.restored: dict[str, Any] | None = None
        self.first_step = 0
        if found := self._checkpointer.restore(state):
            state, self.restored, self.first_step = found.state, found.host, found.step
        self._baselines = np.array(state.baselines)
        self._updates = stack.enter_context(
            Pacer(
                state,
                self.first_step,
                ahead,
                self._close_step,
                at_report=ahead > 0 and jax.process_count() > 1,
            )
        )
        stack.enter_context(hosts.after(self._updates.catch_up))

    def _claim_workdir(self) -> None:
        self._stack.enter_context(WorkdirLock(self._workdir))
        for difference in compare_config(self._workdir, self._config):
            self.say(f"config changed: {difference}")

    def say(self, text: str) -> None:
        """Prints a line, once for the run."""
        if self.first:
            print(text, flush=True)

    def begin(self, notes: str, columns: Sequence[Column], results: tuple[str, ...]) -> None:
        """Binds the workdir to the config and opens the metrics; not earlier than anything that may refuse.

        Args:
          notes: shown above the config.
          columns: of the line that a step prints.
          results: tags that the hparams page tabulates.
        """
        config = self._config
        hosts.from_first(lambda: self._open_metrics(notes, results))
        self.sampler_params = self._publish(self.state.params)
        self.engine = compose.engine(
            config,
            self.model,
            self.sampler_params,
            self.template,
            self.sampler_mesh,
            on_step=self._updates.poll,
            launching=self.launching,
        )
        self.engine.set_params(self.sampler_params, version=self.first_step)
        self.timers = metrics.Timers()
        lines = sys.stdout if self.first else io.StringIO()
        self._progress = Progress(self.first_step, config.run.steps, columns, lines)
        self._saving = Cadence(config.checkpoint.save_steps, config.checkpoint.save_secs)
        traced = config.profile.steps if self.first else ""
        self._profiler = self._stack.enter_context(Profiler(traced, f"{self._workdir}/metrics"))
        self._shutdown.begin()

    def _open_metrics(self, notes: str, results: tuple[str, ...]) -> None:
        config = self._config
        write_config(self._workdir, config)
        self._writer = metrics.MetricWriter(f"{self._workdir}/metrics", start_step=self.first_step)
        self._stack.callback(self._writer.close)
        if self.restored is None:
            self._writer.text(0, "config", metrics.code_block(f"# {notes}\n{config.to_yaml()}", "yaml"))
            overridden = config_flags.get_override_values(flags.FLAGS["config"])  # what a sweep varies is among it
            shown = {key: get_key(config, key) for key in (*HPARAMS, *overridden)}
            self._writer.hparams(shown, results, os.path.basename(self._workdir))

    @property
    def state(self) -> state_lib.TrainState:
        """The train state behind every `learn` so far; waits for the updates under way. The next one consumes it."""
        return self._updates.state

    def begin_step(self, step: int) -> None:
        """A step, or the evaluation after the last, begins.

        The sampler draws from the weights of this step, or from older ones, by `rollout.max_staleness` updates at most,
        until those under way have ended.
        """
        self._profiler.step(step)

    def catch_up(self) -> None:
        """Waits for the updates under way, so that the sampler draws from the weights of this step."""
        self._updates.catch_up()

    def log_scalars(self, step: int, values: dict[str, float]) -> None:
        """Writes {tag: value} of a step down."""
        if self.first:
            self._writer.scalars(step, values)

    def log_text(self, step: int, tag: str, markdown: str) -> None:
        """Writes a text of a step down."""
        if self.first:
            self._writer.text(step, tag, markdown)

    def take_counters(self) -> Counters:
        """The samplers' totals since the last call: tokens of all processes, seconds of the slowest."""
        taken = hosts.gather(self.engine.take_counters(), Counters)
        values = {
            name: (max if name.endswith("_seconds") else sum)(getattr(counters, name) for counters in taken)
            for name in (field.name for field in dataclasses.fields(Counters))
        }
        return Counters(**values)

    @contextlib.contextmanager
    def phase(self, name: str, step: int) -> Iterator[None]:
        """Times a phase of a step, and shows on a terminal that it is under way."""
        with self.timers.phase(name), self._progress.phase(name, step):
            yield

    def estimate(
        self, returns: Sequence[float], roles: Sequence[int], groups: Sequence[int], valid: Sequence[bool]
    ) -> advantage.Advantages:
        """Role-conditioned advantages of N episodes, by each role's estimator; host arrays."""
        advantages, keep, baselines = advantage.estimate_on_hosts(
            self.mesh,
            np.array(returns),
            np.array(roles),
            np.array(groups),
            np.array(valid),
            partitioning.global_copies(self.mesh, self._baselines),
            estimators=compose.estimators(self._config),
            num_groups=compose.num_groups(self._config),
            ema_decay=self._config.selfplay.baseline_decay,
        )
        return advantage.Advantages(advantages, keep, np.array(baselines))

    def learn(
        self,
        sequences: Sequence[structs.Trajectory],
        advantages: Sequence[float],
        keep: Sequence[bool],
        baselines: np.ndarray,
    ) -> None:
        """One update on the sequences that are kept. What it measures is logged with the rest of the step."""
        sequences = [dataclasses.replace(s, weight=float(k)) for s, k in zip(sequences, keep, strict=True)]
        steps = self._config.learner.optimizer_steps
        minibatches, packing = batch.pack(sequences, advantages, self._buckets, minibatches=steps)
        self._baselines = baselines

        def update(state: state_lib.TrainState) -> tuple[state_lib.TrainState, dict[str, float]]:
            began = time.perf_counter()
            state = state._replace(baselines=partitioning.global_copies(self.mesh, baselines))
            state, log = jax.block_until_ready(self._update(state, minibatches, self._reference))
            seconds = time.perf_counter() - began
            performance = measure.update_performance(packing.tokens, seconds, self.flops_per_token)
            return state, log | performance | {"learner/padding_share": packing.padding_share}

        self._updates.update(update)

    def finish(self, step: int, log: dict[str, float], host: dict[str, Any]) -> bool:
        """The step ends: it is written down, with a checkpoint where one is due, as soon as its update has ended.

        Args:
          log: {tag: value} of the step, but for the update's.
          host: the method's own state behind the step, plain JSON values.

        Returns:
          Whether the run has to stop here; then everything has been written down.
        """
        log = log | self.timers.take() | {"perf/compilations": self._compilations.count}
        last = step + 1 == self._config.run.steps
        # By the first one's clock, and where anyone was asked to stop.
        due, requested = zip(*hosts.gather([self._saving.due(step + 1), self._shutdown.requested]), strict=True)
        stop = any(requested) and not last
        kept = copy.deepcopy(host) if due[0] or last or stop else None  # the loop goes on changing its own
        self._updates.report(_Report(step, log, kept))
        if last or stop:
            self.catch_up()
        if stop:
            self.say(f"stopped after step {step + 1} with a checkpoint; the same command goes on")
        return stop

    def _close_step(
        self, state: state_lib.TrainState, version: int, update_log: dict[str, float], report: _Report
    ) -> None:
        """Writes a step down, then a checkpoint where one is due; the sampler goes on with the new weights."""
        with self.timers.phase("write"):  # which the next step counts: what it takes is not known before
            log = report.log | update_log
            self.log_scalars(report.step, log)
            self._progress.line(report.step, log)
            if report.host is not None:
                self._checkpointer.save(version, state, report.host)
        with self.timers.phase("publish"):
            self.sampler_params = self._publish(state.params)
            self.engine.set_params(self.sampler_params, version)
