"""The loop: `python tests/benchmarks/loop.py [--delays_ms=0,1,50] [--json=FILE]`.

wait   share of the wall time of a rollout in which nothing is sampled, where a step of an environment takes 0, 1 or
       50 ms, and the sampler's slot occupancy
start  wall time of a one-step run with an empty and with a warm compile cache
"""

from __future__ import annotations

import argparse
import dataclasses
import subprocess
import sys
import tempfile

import harness
import networks

from configs import spade_tiny
from spade_jax import compose
from spade_jax.envs.bundled import bundled_records
from spade_jax.envs.families.base import TRAIN
from spade_jax.rollout.episodes import paired_requests, play_episodes
from spade_jax.runtime.presets import resolve_preset

CONFIG = harness.ROOT / "configs" / "spade_tiny.py"
SLOW_STEP = """

import time as _time
_step = {name}.step
def _slow_step(self, action):
    _time.sleep({seconds})
    return _step(self, action)
{name}.step = _slow_step
"""


def wait(options: argparse.Namespace) -> harness.Record:
    """The tiny run's rollout on bundled programs, whose steps are made slower."""
    config, rounds = resolve_preset(spade_tiny.get_config()), options.rounds
    places = config.rollout.active_skills * config.rollout.places_per_skill
    with compose.sandbox_pool(config) as pool:
        record = harness.Record(options, networks.limits())  # it measures devices, which the sandbox has to come before
        template = compose.chat_template(config)
        model, params = compose.policy(config, template)
        engine = compose.engine(config, model, params, template, compose.mesh(config, model))
        settings = compose.episode_settings(config)
        for delay in map(int, options.delays_ms.split(",")):
            programs = []
            for drawn in bundled_records(TRAIN, places, seed=0):
                program = drawn.record
                slow = SLOW_STEP.format(name=program.class_name, seconds=delay / 1000) if delay else ""
                programs.append(dataclasses.replace(program, source=program.source + slow))
            shares = []
            for turn in range(1 + rounds):  # the first one compiles
                requests = paired_requests(programs, step=turn, first_index=0, seeds=config.rollout.seeds, paired=True)
                engine.take_counters()
                seconds = harness.timed(
                    lambda requests=requests: play_episodes(engine, pool, template, requests, settings)
                )
                counters = engine.take_counters()
                shares.append(1 - (counters.prefill_seconds + counters.decode_seconds) / seconds)
            name = f"rollout of {len(requests)} episodes, {delay} ms a step"
            record.one(f"{name}: nothing is sampled", 100 * sorted(shares[1:])[rounds // 2], "% of wall time")
            record.one(f"{name}: slot occupancy", 100 * counters.occupancy, "%")
    return record


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


def main() -> None:
    options = harness.arguments(__doc__, delays_ms=dict(default="0,1,50", help="of a step"))
    start(wait(options))


if __name__ == "__main__":
    main()
