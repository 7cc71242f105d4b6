"""SPADE on tool use with the embedded policy: as `spade_tiny.py`, with tools for games.

    python -m spade_jax.train --config=configs/spade_tiny_tools.py:bundled --workdir=runs/tools

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.
Expect: the embedded policy has not learned tool use, in programs or in plays. It writes next to no valid tool program,
so that without a variant there is little or nothing to play, and it wins next to no episode of the bundled programs.
What this config shows until weights are built with tool samples (`tool_program`, `tool_hint`, `tool_plain`,
`tool_hinted` in a warm start's mixture) is that the loop runs end to end: `:bundled` plays the bundled tool programs.

Variants, comma-separated after a colon: see `VARIANTS`. Seeds: `--config.run.seed=1`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import spade_tiny
from configs.words import parse_words

VARIANTS = {
    "runlocal": "4 steps with every feature on, as a smoke test",
    "bundled": "plays the bundled tool programs instead of the designer's",
    "paper": "the published method: every switch of method.preset set back",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = spade_tiny.get_config(",".join(sorted(words - {"bundled"})))

    config.rollout.kind = "tool"
    # The domains of the bundled families; the others mean nothing to a policy of this size.
    config.rollout.skills = ("inventory", "banking", "calendar", "mail")
    config.rollout.regenerate_every = 8
    config.rollout.max_turns = 18  # replies: calls, and one that finishes each message
    config.learner.max_staleness = 8  # designer samples wait for a whole window
    config.sampler.agent.max_new_tokens = 72  # a reason and a call

    if "runlocal" in words:
        config.rollout.regenerate_every = 2
    if "bundled" in words:
        config.rollout.environments = "bundled"
    return config
