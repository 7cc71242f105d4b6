"""SPIRAL with Qwen3-4B-Base on three games: as `spiral_qwen3_4b_kuhn.py`, with tic-tac-toe and negotiation.

    python -m spade_jax.train --config=configs/spiral_qwen3_4b_multi.py --workdir=runs/spiral_qwen3_4b_multi

Published are 128 turns an iteration; 12 matches have about as many, seven to twelve each by the game.

Hardware, memory and time: as there. Evaluation adds the four games that are not trained on.

Variants, comma-separated after a colon: see `VARIANTS`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import spiral_qwen3_4b_kuhn

VARIANTS = spiral_qwen3_4b_kuhn.VARIANTS


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    config = spiral_qwen3_4b_kuhn.get_config(arg)
    config.selfplay.games = ("tictactoe", "kuhn_poker", "negotiation")
    config.selfplay.matches = 12
    config.evaluation.games = ("snake", "pig_dice", "truth_and_deception", "liars_dice")
    return config
