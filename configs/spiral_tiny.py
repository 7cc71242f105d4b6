"""SPIRAL on a laptop: the embedded policy plays Kuhn poker against itself, with nothing to download.

    python -m spade_jax.train --config=configs/spiral_tiny.py --workdir=runs/spiral

Hardware: 2 CPU cores, at most 4 GiB of memory, no accelerator.
Expect: exploitability .476 -> .062, .113 and .102 (seeds 0 to 2, 200 steps). First bets and calls rise whatever the
card, .333, until the policy begins to tell the cards apart, at step 30 to 60 by the seed. 6 minutes of processor time,
1.9 s a step. Against random moves it wins about half of its rounds: in equilibrium, too, it would, .46 to .50, and be
paid .11 to .17 antes a round, for it folds what is beaten.

Why it settles: without `learner.kl_coefficient` bets disappear, and with them what would reward a bluff: .333 for good.
The divergence pulls towards the initial policy, which is nearly uniform over the legal moves: a magnet, as in magnetic
mirror descent (Sokota et al., arXiv:2206.05825), which makes self-play converge to a point near the equilibrium. With
exact gradients that point has an exploitability of .071 at a coefficient of .1, and .038 at .05
(`pytest tests/evals/test_ground_truth.py -k magnet`). Muon finds the cards in the prompt sooner than AdamW does.

A match is one round and pays its chips, so that the exact exploitability in `eval/kuhn_poker/exploitability` (antes a
round; uniform play 0.458, equilibrium 0) is that of the game that is trained on.

`:tictactoe` has a warm start of its own and begins its matches with up to four random moves: in 150 steps the likeliest
moves lose none of the matches with minimax in the first seat, and .02, .06 and .02 (seeds 0 to 2) in the second, where
they lost .36 at first.

Variants, comma-separated after a colon: see `VARIANTS`. Seeds: `--config.run.seed=1`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# Configs are loaded by path, from any working directory.
sys.path.append(str(Path(__file__).resolve().parents[1]))

from ml_collections import ConfigDict

from configs import base
from configs.words import parse_words

VARIANTS = {
    "runlocal": "4 steps with every feature on, as a smoke test",
    "compat": "the original's quirks: bets move no chips, the last round decides, invalid moves cost -1.5 and pay .5",
    "tictactoe": "tic-tac-toe instead of Kuhn poker",
}


def get_config(arg: str | None = None) -> ConfigDict:
    """Returns the config; `arg` is a comma-separated list of VARIANTS."""
    words = parse_words(arg, VARIANTS)
    config = base.get_config()

    config.run.steps = 200
    config.method.algorithm = "spiral"
    config.policy.init = "spiral"
    config.policy.dtype = "float32"
    config.policy.remat = False
    config.tokens.tokenizer = "spiral"
    config.designer.style = "tiny"

    config.sampler.slots = 64
    config.sampler.context = 80
    config.sampler.block = 2
    config.sampler.cache_dtype = "float32"
    config.sampler.agent.temperature = 1.0
    config.sampler.agent.max_new_tokens = 32

    config.selfplay.games = ("kuhn_poker",)
    config.selfplay.matches = 128
    config.selfplay.pool.every_steps = 20
    config.games.kuhn_poker.rounds = 1
    config.games.kuhn_poker.payoff = "margin"

    config.learner.estimator.agent = "ema"
    config.learner.aggregation = "constant_length"
    config.learner.constant_length = 16
    config.learner.clip_high = 0.2
    config.learner.kl_coefficient = 0.1
    config.learner.optimizer_steps = 2
    config.learner.micro_batch_tokens = 2304
    config.learner.buckets = (48, 80)
    config.learner.vocab_chunk = 8
    config.learner.optimizer.kind = "muon"
    config.learner.optimizer.learning_rate = 1e-3
    config.learner.optimizer.schedule = "cosine"
    config.learner.optimizer.final_fraction = 0.05
    config.learner.optimizer.b2 = 0.95
    config.learner.optimizer.weight_decay = 0.0

    config.evaluation.every_steps = 20
    config.evaluation.opponents = ("random", "minimax")
    config.evaluation.rated_against = 2
    config.evaluation.temperature = 1.0
    config.checkpoint.save_steps = 50
    config.checkpoint.save_secs = 120.0
    config.log.text_steps = 10

    if "tictactoe" in words:
        config.run.steps = 150
        config.policy.init = "tictactoe"
        config.tokens.tokenizer = "tictactoe"
        config.sampler.context = 64
        config.learner.buckets = (32, 36, 64)
        config.learner.optimizer_steps = 4
        config.selfplay.games = ("tictactoe",)
        config.selfplay.matches = 256
        config.selfplay.exploring_starts = 4
        # Perfect play needs no chance: the likeliest move is what is judged.
        config.evaluation.temperature = 0.0
        config.evaluation.matches = 128
        config.evaluation.positions = 1024
    if "compat" in words:
        config.games.kuhn_poker.rounds = 5
        config.sampler.context = 256  # each round says what the ones before it brought
        config.learner.buckets = (48, 80, 256)
        config.games.kuhn_poker.compat = True
        config.games.kuhn_poker.payoff = "winner"
        config.selfplay.invalid_penalty = 1.5
        config.selfplay.invalid_bonus = 0.5
    if "runlocal" in words:
        config.run.steps = 4
        config.selfplay.matches = 16
        config.selfplay.opponent = "pool"
        config.selfplay.pool.every_steps = 1
        config.evaluation.every_steps = 2
        config.evaluation.opponents = ("random", "minimax", "initial")
        config.evaluation.matches = 8
        config.evaluation.readings = 2
        config.evaluation.positions = 8
        config.checkpoint.save_steps = 2
        config.log.text_steps = 1
    return config
