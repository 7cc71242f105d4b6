"""Builds the embedded tiny policy: tokenizer and weights, from a fixed seed.

    JAX_NUM_CPU_DEVICES=2 python -m spade_jax.warmstart --config=configs/warmstart_tiny.py --out=spade_jax/assets/tiny

Hardware: 2 CPU cores, 4 GiB.
"""

import ml_collections


def get_config(arg=None):
    """`runlocal` builds a useless policy in under a minute, to exercise the job."""
    config = ml_collections.ConfigDict()
    config.seed = 0
    # Tokenizer.
    config.vocab_size = 2048
    config.tokenizer_samples = 12000  # programs, hints and transcripts the pieces are learned from
    # Network; see spade_jax/policy/config.py.
    config.policy = ml_collections.ConfigDict(
        dict(embed_dim=192, num_layers=5, num_heads=6, num_kv_heads=2, head_dim=32, mlp_dim=512)
    )
    # How often a designer prompt shows an exemplar.
    config.exemplar_share = 0.35
    # Length buckets; every batch holds tokens_per_step tokens of one bucket.
    config.buckets = (160, 256, 464, 928)
    config.tokens_per_step = 4096
    # Loss weight of prompt tokens: of prompts that show a program, and of what an environment says.
    config.prompt_weight = ml_collections.ConfigDict(dict(program=0.5, observation=0.1))
    # Stages in the order of their names, each from the weights that the one before it stored. `mixture` is the share of
    # samples (not tokens) by kind. First the programs, which are long to learn; then mostly plays.
    config.stages = ml_collections.ConfigDict(
        dict(
            a_write=dict(
                steps=1300, learning_rate=3e-3, mixture=dict(program=0.30, hint=0.08, plain=0.36, hinted=0.26)
            ),
            b_play=dict(
                steps=600, learning_rate=2e-3, mixture=dict(program=0.10, hint=0.03, plain=0.45, hinted=0.42)
            ),
            c_play=dict(
                steps=1000, learning_rate=2e-3, mixture=dict(program=0.12, hint=0.03, plain=0.40, hinted=0.45)
            ),
            d_play=dict(
                steps=1800, learning_rate=2e-3, mixture=dict(program=0.08, hint=0.03, plain=0.44, hinted=0.45)
            ),
            e_tools=dict(
                steps=1800,
                learning_rate=2e-3,
                mixture=dict(
                    program=0.06,
                    hint=0.02,
                    plain=0.32,
                    hinted=0.30,
                    tool_program=0.10,
                    tool_hint=0.02,
                    tool_plain=0.09,
                    tool_hinted=0.09,
                ),
            ),
            # Half of the plays of games are careless from here on: what self-play can then improve first is care.
            # And as many programs again, so that families are drawn evenly.
            f_careless=dict(
                steps=800,
                learning_rate=1.5e-3,
                mixture=dict(
                    program=0.22,
                    hint=0.03,
                    plain=0.16,
                    plain_careless=0.16,
                    hinted=0.10,
                    hinted_careless=0.10,
                    tool_program=0.10,
                    tool_hint=0.02,
                    tool_plain=0.06,
                    tool_hinted=0.05,
                ),
            ),
        )
    )
    # Optimiser: Muon, linear warm-up, cosine to 10 % in every stage.
    config.warmup_steps = 30
    config.weight_decay = 0.05
    config.log_steps = 50
    if arg == "runlocal":
        for stage in config.stages.values():
            stage.steps = 10
        config.warmup_steps, config.log_steps = 5, 5
        config.tokenizer_samples = 1500
        config.vocab_size = 1024
    elif arg:
        raise ValueError(f"configs/warmstart_tiny.py: unknown variant {arg!r}; use runlocal or none")
    return config.lock()
