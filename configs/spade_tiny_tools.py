"""SPADE on tool use with the embedded policy: as `spade_tiny.py`, with tools for games.

    python -m spade_jax.train --config=configs/spade_tiny_tools.py --workdir=runs/tools

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.
Expect (seed 0, 16 steps, half an hour beside other work): `designer/valid_share` between .83 and 1.00; in play .17 of
episodes won at first and .32 over the last four steps; the probe .125, .175, .200 at steps 0, 8, 16; regret within 1.8
standard errors of 0 throughout, so hints are worth next to nothing yet.

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
    config.rollout.regenerate_every = 4
    config.rollout.max_turns = 18  # replies: calls, and one that finishes each message
    config.sampler.agent.max_new_tokens = 72  # a reason and a call

    if "runlocal" in words:
        config.rollout.regenerate_every = 2
    if "bundled" in words:
        config.rollout.environments = "bundled"
    return config
