"""The loop: `python tests/benchmarks/loop.py [--parts=wait,rows,start,overlap] [--delays_ms=0,1,50] [--json=FILE]`.

wait     share of the wall time of a rollout in which nothing is sampled, where a step of an environment takes 0, 1 or
         50 ms, tokens drawn per second of the rollout, and the sampler's slot occupancy
rows     tokens per second of such a rollout, and occupancy, against a sampler that computes a row for every
         conversation that draws and ends its blocks, of 8 tokens, only when nobody in them draws any more
start    wall time of a one-step run with an empty and with a warm compile cache
overlap  wall time of a step, and staleness, where rollouts wait for the update and where they overlap it
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import statistics
import subprocess
import sys
import tempfile
import time

import harness
import networks

from configs import spade_tiny
from spade_jax import compose
from spade_jax.envs.bundled import bundled_records
from spade_jax.envs.families.base import TRAIN
from spade_jax.rollout.episodes import paired_requests, play_episodes
from spade_jax.runtime.metrics import read_scalars
from spade_jax.runtime.presets import resolve_preset
from spade_jax.sampler import engine as engine_lib

CONFIG = harness.ROOT / "configs" / "spade_tiny.py"
SLOW_STEP = """

import time as _time
_step = {name}.step
def _slow_step(self, action):
    _time.sleep({seconds})
    return _step(self, action)
{name}.step = _slow_step
"""


def rollouts(options: argparse.Namespace, parts: list[str]) -> harness.Record:
    """What is measured on rollouts of the tiny run without a trainer."""
    config = resolve_preset(spade_tiny.get_config())
    with compose.sandbox_pool(config) as pool:
        record = harness.Record(options, networks.limits())  # it measures devices, which the sandbox has to come before
        template = compose.chat_template(config)
        model, params = compose.policy(config, template)
        mesh = compose.mesh(config, model)
        if "wait" in parts:
            engine = compose.engine(config, model, params, template, mesh)
            wait(record, config, options, engine, template, pool)
        if "rows" in parts:
            make = functools.partial(compose.engine, config, model, params, template, mesh)
            rows(record, config, options.rounds, make, template, pool)
    return record


def wait(record: harness.Record, config, options: argparse.Namespace, engine, template, pool) -> None:
    """On bundled programs whose steps are made slower."""
    rounds, settings = options.rounds, compose.episode_settings(config)
    for delay in map(int, options.delays_ms.split(",")):
        programs = []
        for drawn in bundled_records(TRAIN, places(config), seed=0):
            program = drawn.record
            slow = SLOW_STEP.format(name=program.class_name, seconds=delay / 1000) if delay else ""
            programs.append(dataclasses.replace(program, source=program.source + slow))
        shares, speeds = [], []
        for turn in 2 * list(range(rounds)):  # what compiles does so in the first pass, as the second is the same
            requests = paired_requests(programs, step=turn, first_index=0, seeds=config.rollout.seeds, paired=True)
            engine.take_counters()
            seconds = harness.timed(lambda requests=requests: play_episodes(engine, pool, template, requests, settings))
            counters = engine.take_counters()
            shares.append(1 - (counters.prefill_seconds + counters.decode_seconds) / seconds)
            speeds.append(counters.sampled_tokens / seconds)
        name = f"rollout of {len(requests)} episodes, {delay} ms a step"
        record.one(f"{name}: nothing is sampled", 100 * statistics.median(shares[rounds:]), "% of wall time")
        record.one(f"{name}: drawn", statistics.median(speeds[rounds:]), "tokens/s")
        record.one(f"{name}: slot occupancy", 100 * counters.occupancy, "%")


def places(config) -> int:
    return config.rollout.active_skills * config.rollout.places_per_skill


def rows(record: harness.Record, config, rounds: int, make_engine, template, pool) -> None:
    """Under two schedules of the same sampler."""
    programs = [drawn.record for drawn in bundled_records(TRAIN, places(config), seed=0)]
    settings = compose.episode_settings(config)
    occupancies: dict[str, float] = {}

    def side(name: str, full: float, busy: float, block: int):
        config.sampler.block = block
        engine = make_engine()
        steps = itertools.count()

        def play(step: int) -> float:
            engine_lib._FULL, engine_lib._BUSY = full, busy
            requests = paired_requests(programs, step=step, first_index=0, seeds=config.rollout.seeds, paired=True)
            seconds = harness.timed(lambda: play_episodes(engine, pool, template, requests, settings))
            counters = engine.take_counters()
            occupancies[name] = counters.occupancy
            return counters.sampled_tokens / seconds

        for step in range(1, 1 + rounds):  # so that nothing is left to compile when they are timed
            play(step)
        return lambda: play(next(steps))

    ours = engine_lib._FULL, engine_lib._BUSY, config.sampler.block
    sides = {name: side(name, *how) for name, how in {harness.OURS: ours, "all rows": (0.0, 1e-9, 8)}.items()}
    record.compare("rollout of the tiny run", "tokens/s", sides)
    for name, occupancy in occupancies.items():
        record.one(f"slot occupancy, {name}", 100 * occupancy, "%")


def start(record: harness.Record) -> None:
    with tempfile.TemporaryDirectory() as folder:
        seconds = []
        for turn in range(2):
            command = [
                sys.executable, "-m", "spade_jax.train", f"--config={CONFIG}:runlocal", "--config.run.steps=1",
                "--config.evaluation.every_steps=0", f"--config.compile_cache.dir={folder}/cache",
                f"--workdir={folder}/{turn}",
            ]  # fmt: skip
            seconds.append(
                harness.timed(
                    lambda c=command: subprocess.run(c, cwd=harness.ROOT, check=True, stdout=subprocess.DEVNULL)
                )
            )
            record.one(f"one-step run, {('empty', 'warm')[turn]} compile cache", seconds[-1], "s")
        record.one("one-step run, warm over empty", 100 * seconds[1] / seconds[0], "%")


def overlap(record: harness.Record, rounds: int, steps: int) -> None:
    """The tiny run, `rollout.max_staleness` 0 and 1 by turns, each round another seed; no evaluation."""
    first = 2  # steps that compile
    seconds, waited, lag, win = ({0: [], 1: []} for _ in range(4))
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for ahead in (0, 1):
                workdir = f"{folder}/{turn}/{ahead}"
                command = [
                    sys.executable, "-m", "spade_jax.train", f"--config={CONFIG}", f"--config.run.steps={steps}",
                    f"--config.run.seed={turn}", "--config.evaluation.every_steps=0",
                    f"--config.rollout.max_staleness={ahead}", f"--workdir={workdir}",
                ]  # fmt: skip
                with subprocess.Popen(command, cwd=harness.ROOT, stdout=subprocess.PIPE, text=True) as run:
                    ends = [time.perf_counter() for line in run.stdout if line.startswith("step ")]
                scalars = read_scalars(workdir)
                seconds[ahead].append((ends[-1] - ends[first - 1]) / (steps - first))
                waited[ahead].append(scalars["perf/seconds/update"][1][first:].mean())
                lag[ahead].append(scalars["learner/staleness"][1][first:].mean())
                win[ahead].append(scalars["agent/win_rate"][1][first:].mean())
    for ahead in (0, 1):
        name = f"tiny run, max_staleness={ahead}"
        record.one(f"{name}: a step", statistics.median(seconds[ahead]), "s")
        record.one(f"{name}: of it preparing and waiting for updates", statistics.median(waited[ahead]), "s")
        record.one(f"{name}: mean staleness", statistics.median(lag[ahead]), "updates")
        record.one(f"{name}: win rate in play", statistics.median(win[ahead]), "")
    record.one(
        "a step with overlap over one without",
        statistics.median(b / a for a, b in zip(*seconds.values(), strict=True)),
        "",
    )


def main() -> None:
    options = harness.arguments(
        __doc__,
        parts=dict(default="wait,rows,start,overlap", help="which of the four"),
        delays_ms=dict(default="0,1,50", help="of a step"),
        steps=dict(type=int, default=8, help="of a run of the overlap"),
    )
    parts = options.parts.split(",")
    sampling = {"wait", "rows"} & set(parts)
    record = rollouts(options, parts) if sampling else harness.Record(options, networks.limits())
    if "start" in parts:
        start(record)
    if "overlap" in parts:
        overlap(record, options.rounds, options.steps)


if __name__ == "__main__":
    main()
