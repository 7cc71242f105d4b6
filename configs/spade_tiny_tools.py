"""SPADE on tool use with the embedded policy: as `spade_tiny.py`, with tools for games.

    python -m spade_jax.train --config=configs/spade_tiny_tools.py --workdir=runs/tools

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.
Expect (seeds 0, 1, 2; 16 steps, about 12 minutes of processor time each): `designer/valid_share` between .83 and 1.00;
in play .22 of episodes won over the first four steps and .34 over the last four; the held-out probe .075 before and
.143 after, all of it the calendar's; regret within noise of 0, so hints are worth next to nothing yet.

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
