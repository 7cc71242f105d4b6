"""Builds the embedded policy of two-player games: tokenizer and weights, from a fixed seed.

    python -m spade_jax.warmstart --config=configs/warmstart_spiral.py --out=spade_jax/assets/spiral
    python -m spade_jax.warmstart --config=configs/warmstart_spiral.py:tictactoe --out=spade_jax/assets/tictactoe

Hardware: 2 CPU cores, 2 GiB; 6 minutes for the second, which knows that game alone: of the board it has seen eight
times as much, which is what telling its lines apart takes.
"""

import ml_collections

GAMES = ("kuhn_poker", "tictactoe", "negotiation", "snake", "pig_dice", "truth_and_deception", "liars_dice")


def get_config(arg=None):
    """`tictactoe` builds the policy of that game; `runlocal` a useless one in under a minute, to exercise the job."""
    config = ml_collections.ConfigDict()
    config.seed = 0
    # Tokenizer.
    config.vocab_size = 1024
    config.tokenizer_samples = 6000  # moves the pieces are learned from
    # Network; see spade_jax/policy/config.py.
    config.policy = ml_collections.ConfigDict(
        dict(embed_dim=96, num_layers=3, num_heads=4, num_kv_heads=2, head_dim=24, mlp_dim=224)
    )
    config.exemplar_share = 0.0  # of designer prompts, which are not among the samples
    # Length buckets; every batch holds tokens_per_step tokens of one bucket.
    config.buckets = (48, 96, 192)
    config.tokens_per_step = 2048
    # Loss weight of prompt tokens: of prompts that show a program, and of what a game says.
    config.prompt_weight = ml_collections.ConfigDict(dict(program=0.0, observation=0.1))
    # `mixture` is the share of samples, each one move. Tic-tac-toe and negotiation have the most to be read.
    shares = dict.fromkeys((f"game_{name}" for name in GAMES), 0.1) | {"game_tictactoe": 0.3, "game_negotiation": 0.2}
    config.stages = ml_collections.ConfigDict(dict(a_play=dict(steps=800, learning_rate=4e-3, mixture=shares)))
    # Optimiser: Muon, linear warm-up, cosine to 10 %.
    config.warmup_steps = 30
    config.weight_decay = 0.05
    config.log_steps = 50
    if arg == "tictactoe":
        # One game has few words. The pieces are then the cells, which is how a board is best read.
        config.vocab_size = 512
        config.buckets = (36, 48)
        config.stages.a_play.steps = 2000
        config.stages.a_play.mixture = dict(game_tictactoe=1.0)
    elif arg == "runlocal":
        config.stages.a_play.steps = 10
        config.warmup_steps, config.log_steps = 5, 5
        config.tokenizer_samples = 600
        config.vocab_size = 512
    elif arg:
        raise ValueError(f"configs/warmstart_spiral.py: unknown variant {arg!r}; use tictactoe, runlocal or none")
    return config.lock()
