"""SPIRAL on three games at once: as `spiral_tiny.py`, with tic-tac-toe, Kuhn poker and negotiation.

    python -m spade_jax.train --config=configs/spiral_tiny_multi.py --workdir=runs/multi

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.

Expect: in 100 steps (25 minutes of processor time) .74, .62 and .88 against the start in its three games, about what
specialists with as many matches of their game reach (`configs/sweeps/spiral_specialists.py`; README.md has the table).
Kuhn poker's exploitability falls to .333, as in the first steps of `spiral_tiny.py`: five rounds that one chip decides
teach it more slowly. Evaluation adds the four games that are not trained on; nothing carries over to them.

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
