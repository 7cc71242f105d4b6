"""Metrics: TensorBoard event files, written and read without TensorFlow.

The tags are fixed, so that the curves of different runs lie over one another. A run
that resumes at step s first writes a SessionLog START event with step s, which tells
TensorBoard, and `read_scalars`, to forget what the dead process had logged from s on.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import numpy as np
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from tensorboard.compat.proto import event_pb2, summary_pb2
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.custom_scalar import metadata as layout_metadata
from tensorboard.plugins.hparams import summary_v2 as hparams_summary
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter
from tensorboard.util import tensor_util

# Every scalar tag and what it means. "<x>" stands for a name without slashes.
TAGS: dict[str, str] = {
    "agent/win_rate": "share of plain episodes that met the goal",
    "agent/win_rate_hinted": "share of hinted episodes that met the goal",
    "agent/return": "mean return of plain episodes, in [-1, 1]",
    "agent/turns": "mean turns per plain episode",
    "agent/void_share": "share of episodes dropped because the environment, the sandbox or time failed",
    "agent/deadline_share": "share of episodes dropped because the rollout's deadline found them unfinished",
    "agent/infrastructure_share": "share of episodes dropped because the sandbox failed, as where its machine died",
    "designer/regret": "mean over environments of return with hint minus return without, same seeds",
    "designer/regret_se": "standard error of designer/regret over environments",
    "designer/regret_null": "the same with the arms' labels swapped at random: must stay near 0",
    "designer/regret_null_se": "standard error of designer/regret_null",
    "designer/negative_share": "share of environments in which the hint did harm",
    "designer/saturated_share": "share of environments whose regret reaches the scale, so that more pays nothing",
    "designer/reward": "mean reward of the programs written",
    "designer/valid_share": "share of first attempts that pass every gate check",
    "designer/reject/<check>": "share of first attempts that fail at this check",
    "designer/canary_wrong": "canary programs on which the gate's verdict was wrong: must stay 0",
    "designer/learnable_share": "share of environments in play with a win rate in [.2, .8]",
    "designer/novel_share": "share of first attempts whose source is not in memory",
    "memory/size": "environments in memory",
    "baseline/<game>/<role>": "running baseline of a two-player game's role",
    "selfplay/<game>/win_rate_seat0": "share of self-play games won by the first seat",
    "selfplay/<game>/draw_rate": "share of self-play games drawn",
    "selfplay/<game>/invalid_rate": "share of self-play games ended by an invalid move",
    "selfplay/<game>/moves": "mean legal moves of a self-play game, both seats together",
    "selfplay/<game>/response_tokens": "mean tokens of a response in self-play",
    "selfplay/<game>/win_rate": "share of games won against another opponent than the policy itself",
    "selfplay/void_share": "share of games that could not be played to an end through no fault of a move",
    "selfplay/deadline_share": "share of games that the rollout's deadline found unfinished",
    "eval/<game>/<opponent>/win": "share of evaluation games won",
    "eval/<game>/<opponent>/draw": "share of evaluation games drawn",
    "eval/<game>/<opponent>/loss": "share of evaluation games lost",
    "eval/<game>/<opponent>/invalid": "share of evaluation games lost by an invalid move",
    "eval/<game>/<opponent>/void": "share of evaluation games void, where the opponent answers from outside and failed",
    "eval/<game>/<opponent>/<outcome>_low": "lower end of that share's 95 % Wilson interval",
    "eval/<game>/<opponent>/<outcome>_high": "upper end of that share's 95 % Wilson interval",
    "eval/<game>/<opponent>/<seat>/<outcome>": "that share in one seat",
    "eval/<game>/exploitability": "what a best response gains against the policy",
    "eval/kuhn_poker/value_seat0": "what the seat that acts first wins against itself, antes; -1/18 in equilibrium",
    "eval/kuhn_poker/unread": "share of responses, drawn to read the policy, that hold no legal action",
    "eval/tictactoe/optimal": "share of positions in which the policy's move keeps the minimax value",
    "eval/elo": "Elo rating among the run's snapshots, above the initial policy's",
    "eval/<suite>/<task>": "win rate on one task of a fixed suite never trained on",
    "learner/loss": "loss of the update",
    "learner/grad_norm": "global norm of the gradient before clipping",
    "learner/grad_variance": "expected squared distance of that gradient from its own mean, from the micro-batches",
    "learner/clip_share": "share of trained tokens whose ratio was clipped",
    "learner/entropy": "mean entropy of the policy at trained tokens, nats",
    "learner/kl": "mean k3 estimate of the divergence from the policy that sampled, nats",
    "learner/kl_reference": "mean k3 estimate of the divergence from the reference policy, nats; 0 without one",
    "learner/ratio": "mean probability ratio at trained tokens",
    "learner/tokens": "tokens trained on",
    "learner/padding_share": "share of the positions computed in the update's batches that are padding",
    "learner/logp_gap_mean": "mean |log-prob recomputed - log-prob recorded| over trained tokens, nats",
    "learner/logp_gap_max": "largest such gap, nats",
    "learner/router_balance": "how evenly experts are used, as the balance loss has it: 1 even, at most their number",
    "learner/router_max_load": "load of the busiest expert of a layer, as a multiple of an even share",
    "learner/staleness": "mean updates between drawing a sequence's oldest token and training on it",
    "learner/staleness_max": "most updates between drawing a token and training on it",
    "learner/tis_weight": "mean importance weight of trained tokens, truncated at learner.tis_cap",
    "learner/tis_capped_share": "share of trained tokens whose importance weight was truncated",
    "perf/sample_tokens_per_s": "tokens drawn per second of sampling",
    "perf/train_tokens_per_s": "tokens trained on per second of the update itself",
    "perf/mfu": "model flops used / peak of the devices, in the update",
    "perf/env_steps_per_s": "environment steps per second of playing",
    "perf/seconds/<phase>": "wall time that the loop spent in one phase of the step",
    "perf/step_seconds": "wall time from the metrics of the step before to this step's; the phases add up to it",
    "perf/compilations": "programs compiled or loaded from the compilation cache so far",
    "perf/slot_occupancy": "share of the rows computed in decode steps that drew a token",
    "perf/stale_cache_share": "share of the tokens drawn that attended to keys and values of older weights",
}

TEXT_TAGS: dict[str, str] = {
    "designer/program": "a program written this step, with its verdicts and hint",
    "agent/transcript": "one episode without the hint",
    "agent/transcript_hinted": "the same environment and seed with the hint",
    "selfplay/transcript": "one match of a two-player game, both seats",
    "config": "the resolved config",
}

# The custom-scalars page: title and tags of each chart.
LAYOUT: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("regret, and its null", ("designer/regret", "designer/regret_se", "designer/regret_null")),
    ("win rate, plain and hinted", ("agent/win_rate", "agent/win_rate_hinted")),
    ("programs: valid, learnable, novel", ("designer/valid_share", "designer/learnable_share", "designer/novel_share")),
)

_PATTERNS = {re.compile(re.sub(r"<\w+>", "[^/]+", tag)): meaning for tag, meaning in TAGS.items()}


def describe(tag: str) -> str:
    """The meaning of a concrete tag; ValueError if no row of TAGS matches it."""
    for pattern, meaning in _PATTERNS.items():
        if pattern.fullmatch(tag):
            return meaning
    raise ValueError(f"metric {tag!r} is not a row of TAGS; add it there with its meaning")


class MetricWriter:
    """Writes one run's metrics; only process 0 of a run owns one.

    `scalars` flushes to the file, so that what was logged before a checkpoint survives a kill
    after it: log a step's metrics before saving its checkpoint.

    Args:
      directory: the `metrics/` folder of a workdir.
      start_step: first step that this process will log.
    """

    def __init__(self, directory: str | os.PathLike[str], *, start_step: int = 0) -> None:
        os.makedirs(directory, exist_ok=True)
        earlier = _event_files(directory)
        # Readers take the files in the order of their names, so the name counts; a time stamp could
        # tie or go backwards. We write synchronously: TensorBoard's own writer has a thread, in which a
        # full disk ends with a traceback of its own.
        path = os.path.join(directory, f"events.out.tfevents.{len(earlier):010d}.{socket.gethostname()}")
        self._file = open(path, "xb")  # noqa: SIM115 (held for the run's life)
        self._records = RecordWriter(self._file)
        self._event(0, file_version="brain.Event:2")
        if earlier:
            self._event(start_step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
        if start_step == 0:
            self._summary(0, _layout_summary())
        self._file.flush()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Logs {tag: value} at `step`.

        Raises:
          ValueError: a tag that is not a row of TAGS.
        """
        for tag in values:
            describe(tag)
        self._event(
            step,
            summary=summary_pb2.Summary(
                value=[summary_pb2.Summary.Value(tag=tag, simple_value=float(value)) for tag, value in values.items()]
            ),
        )
        self._file.flush()

    def text(self, step: int, tag: str, markdown: str) -> None:
        """Logs Markdown under one of TEXT_TAGS (ValueError otherwise)."""
        if tag not in TEXT_TAGS:
            raise ValueError(f"text {tag!r} is not a row of TEXT_TAGS; add it there with its meaning")
        self._summary(step, text_pb(tag, markdown))

    def hparams(self, values: Mapping[str, bool | float | str], metrics: tuple[str, ...], name: str) -> None:
        """Registers the run with the hparams plugin, which then tabulates `metrics` beside `values`.

        Args:
          values: {key: value}; None and tuples are shown as text.
          metrics: scalar tags to tabulate.
          name: of this run, unique within a sweep.
        """
        shown = {key: v if isinstance(v, (bool, int, float, str)) else str(v) for key, v in values.items()}
        self._summary(
            0,
            hparams_summary.hparams_config_pb(
                hparams=[hparams_summary.HParam(key) for key in shown],
                metrics=[hparams_summary.Metric(tag) for tag in metrics],
            ),
        )
        self._summary(0, hparams_summary.hparams_pb(shown, trial_id=name))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricWriter:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _event(self, step: int, **fields: Any) -> None:
        event = event_pb2.Event(wall_time=time.time(), step=step, **fields)
        self._records.write(event.SerializeToString())

    def _summary(self, step: int, summary: summary_pb2.Summary) -> None:
        self._event(step, summary=summary)


def _layout_summary() -> summary_pb2.Summary:
    layout = layout_pb2.Layout(
        category=[
            layout_pb2.Category(
                title="self-play",
                chart=[
                    layout_pb2.Chart(
                        title=title,
                        multiline=layout_pb2.MultilineChartContent(tag=[f"^{re.escape(tag)}$" for tag in tags]),
                    )
                    for title, tags in LAYOUT
                ],
            )
        ]
    )
    summary = summary_pb2.Summary()
    summary.value.add(
        tag=layout_metadata.CONFIG_SUMMARY_TAG,
        tensor=tensor_util.make_tensor_proto(layout.SerializeToString()),
        metadata=layout_metadata.create_summary_metadata(),
    )
    return summary


def code_block(text: str, language: str = "") -> str:
    """Text as a Markdown code block whose fence the text cannot close."""
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def read_scalars(workdir: str | os.PathLike[str]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The final series of every tag, without what a resumed run logged twice.

    Args:
      workdir: a run's directory; its `metrics/` folder is read.

    Returns:
      {tag: (int64[N] steps ascending, float64[N] values)}; {} if nothing was logged.
    """
    series: dict[str, dict[int, float]] = {}
    for path in _event_files(os.path.join(os.fspath(workdir), "metrics")):
        # A file whose writer was killed ends in half a record; the loader stops before it.
        for event in LegacyEventFileLoader(path).Load():
            if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
                for points in series.values():
                    for step in [s for s in points if s >= event.step]:
                        del points[step]
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    series.setdefault(value.tag, {})[event.step] = value.simple_value
    return {
        tag: (np.array(sorted(points), np.int64), np.array([points[s] for s in sorted(points)], np.float64))
        for tag, points in sorted(series.items())
        if points
    }


def _event_files(directory: str | os.PathLike[str]) -> list[str]:
    """Event files in the order in which they were opened."""
    return sorted(glob.glob(os.path.join(glob.escape(os.fspath(directory)), "events.out.tfevents.*")))


class Timers:
    """Wall time by phase of the step.

    `with timers.phase("sample"): ...` adds to that phase, but for phases within it; `take` returns
    {"perf/seconds/sample": seconds, ..., "perf/step_seconds": all of them} since the last `take`.
    """

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._taken = time.perf_counter()
        self._within = 0.0  # seconds of phases within the present one

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        start, (before, self._within) = time.perf_counter(), (self._within, 0.0)
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds - self._within
            self._within = before + seconds

    def seconds(self, name: str) -> float:
        """Seconds of one phase since the last `take`."""
        return self._seconds.get(name, 0.0)

    def take(self) -> dict[str, float]:
        seconds, self._seconds = self._seconds, {}
        before, self._taken = self._taken, time.perf_counter()
        phases = {f"perf/seconds/{name}": value for name, value in seconds.items()}
        return phases | {"perf/step_seconds": self._taken - before}


class CompilationCounter:
    """Counts programs that XLA compiled or took from the cache, from construction on.

    A count that still rises after the first steps means that some shape is not bucketed.
    """

    _EVENT = "/jax/core/compile/backend_compile_duration"

    def __init__(self) -> None:
        import jax  # here, so that the report reads metrics without JAX

        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._listen)

    def _listen(self, event: str, duration: float, **metadata: Any) -> None:
        if event == self._EVENT:
            self.count += 1
