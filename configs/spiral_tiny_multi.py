"""SPIRAL on three games at once: as `spiral_tiny.py`, with tic-tac-toe, Kuhn poker and negotiation.

    python -m spade_jax.train --config=configs/spiral_tiny_multi.py --workdir=runs/multi

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.

Evaluation adds the four games that are not trained on.

Variants, comma-separated after a colon: see `VARIANTS`. Seeds: `--config.run.seed=1`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import spiral_tiny
from configs.words import parse_words

VARIANTS = {name: meaning for name, meaning in spiral_tiny.VARIANTS.items() if name != "tictactoe"}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = spiral_tiny.get_config(",".join(sorted(words)))

    config.selfplay.games = ("tictactoe", "kuhn_poker", "negotiation")
    config.evaluation.games = ("snake", "pig_dice", "truth_and_deception", "liars_dice")
    config.games.kuhn_poker.rounds = 5
    config.games.kuhn_poker.payoff = "winner"
    # Moves of a negotiation are listed in its observation, so its prompts are the longest.
    config.sampler.context = 512
    config.learner.buckets = (64, 128, 256, 512)
    return config
