"""The update: `python tests/benchmarks/learner.py [--networks=tiny,smollm2] [--dtypes=float32,bfloat16] [--json=FILE]`.

Sides take turns in one process with as many threads; speeds are by the clock and by processor time. The peer, of the
extra [benchmark], is transformers' own model trained by torch with the same maths: log-probs of the tokens, a clipped
objective, AdamW; eager, in float32 or under autocast.

    step     tokens a second of one optimiser step on a full batch, by network and precision
    memory   of a training step at a vocabulary of 32k, and over weights, optimiser and activations by formula
"""

from __future__ import annotations

import argparse
import functools

import harness
import jax
import jax.numpy as jnp
import networks
import numpy as np
import peers

from spade_jax.learner import partitioning
from spade_jax.learner.batch import BucketConfig, pack
from spade_jax.learner.logprobs import model_logprobs
from spade_jax.learner.objective import ObjectiveConfig
from spade_jax.learner.state import OptimizerConfig, init_state, make_optimizer
from spade_jax.learner.step import UpdateConfig, make_update
from spade_jax.policy import Decoder, DecoderConfig, count_params, init_params
from spade_jax.structs import Trajectory

LEARNING_RATE, CLIP = 1e-5, 0.2


def trajectories(lengths: list[int], vocab: int) -> list[Trajectory]:
    """Sequences of random tokens, of which all but the first quarter were drawn."""
    rng = np.random.default_rng(0)
    return [
        Trajectory(
            tokens=rng.integers(1, vocab, n, dtype=np.int32),
            loss_mask=np.arange(n) >= n // 4,
            behaviour_logp=np.full(n, -np.log(vocab), np.float32),
            role=0,
            group=0,
            episode_return=0.0,
        )
        for n in lengths
    ]


def step(record: harness.Record, name: str, dtype: str, options: argparse.Namespace) -> None:
    rows, length = options.rows, options.length
    config = DecoderConfig(**{**vars(networks.NETWORKS[name]), "dtype": dtype, "remat": options.remat})
    sequences = trajectories([length] * rows, config.vocab_size)
    advantages = [1.0 if i % 2 else -1.0 for i in range(rows)]
    mesh = partitioning.make_mesh()
    optimizer = make_optimizer(OptimizerConfig(learning_rate=LEARNING_RATE, weight_decay=0.0), Decoder(config))
    update = make_update(Decoder(config), optimizer, mesh, UpdateConfig(ObjectiveConfig(aggregation="token_mean")))
    minibatches, _ = pack(sequences, advantages, BucketConfig((length,), options.micro_batch_tokens))
    ours = {"state": init_state(Decoder(config), optimizer, mesh, seed=0)}

    def turn() -> harness.Speed:
        def once():
            ours["state"], _ = update(ours["state"], minibatches)
            jax.block_until_ready(ours["state"])

        return harness.spent(once).rate(rows * length)

    sides = {harness.OURS: turn}
    if peers.has("transformers"):
        sides["torch"] = torch_turn(name, dtype, sequences, advantages)
    record.compare(f"step {name} {dtype}, {rows} x {length}", "tokens/s", sides)


def torch_turn(name: str, dtype: str, sequences: list[Trajectory], advantages: list[float]) -> harness.Turn:
    """The same update by torch: the clipped objective at ratio 1, mean over the tokens drawn."""
    import torch

    model = peers.transformers_network(name, "float32").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    tokens = torch.from_numpy(np.stack([s.tokens for s in sequences])).long()
    mask = torch.from_numpy(np.stack([s.loss_mask for s in sequences]))[:, 1:]
    advantage = torch.tensor(advantages)[:, None]

    def once() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(tokens).logits[:, :-1]
        logp = torch.log_softmax(logits.float(), -1).gather(-1, tokens[:, 1:, None])[..., 0]
        ratio = torch.exp(logp - logp.detach())
        gain = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP, 1 + CLIP) * advantage)
        optimizer.zero_grad()
        (-(gain * mask).sum() / mask.sum()).backward()
        optimizer.step()

    return lambda: harness.spent(once).rate(tokens.numel())


def memory(record: harness.Record, rows: int = 8, length: int = 512, vocab: int = 32768, chunk: int = 64) -> None:
    """Of log-probs and their gradient, as XLA plans it, beside the optimiser's moments."""
    config = DecoderConfig(**{**vars(networks.NETWORKS["tiny"]), "vocab_size": vocab, "remat": True})
    model = Decoder(config)
    params = jax.eval_shape(functools.partial(init_params, model), jax.random.key(0))
    whole = jax.ShapeDtypeStruct((rows, length), jnp.int32)

    def loss(params, tokens, positions):
        return jnp.sum(model_logprobs(model, params, tokens, positions, chunk=chunk, with_entropy=False)[0])

    plan = jax.jit(jax.grad(loss)).lower(params, whole, whole).compile().memory_analysis()
    moments = 2 * 4 * count_params(params)
    peak = plan.argument_size_in_bytes + plan.output_size_in_bytes + plan.temp_size_in_bytes + moments
    c, tokens = config, rows * length
    heads = (c.num_heads + 2 * c.num_kv_heads) * c.head_dim
    streams = tokens * c.embed_dim * (c.num_layers + 1)  # what is kept of each layer: its input
    layer = tokens * (2 * c.embed_dim + heads + 3 * c.mlp_dim)  # recomputed: norms, queries, keys, values, the MLP
    logits = 2 * rows * chunk * vocab  # of a chunk, and their gradient
    formula = 4 * (4 * count_params(params) + streams + layer + logits)
    record.one(f"peak, tiny with {vocab} tokens, {rows} x {length}", peak / 2**20, "MiB")
    record.one("weights, moments, gradient and activations by formula", formula / 2**20, "MiB")
    record.one("peak over formula", peak / formula, "")
    record.one("its logits in float32, if they were held", tokens * vocab * 4 / 2**20, "MiB")


def main() -> None:
    options = harness.arguments(
        __doc__,
        networks=dict(default="tiny,smollm2"),
        dtypes=dict(default="float32,bfloat16"),
        rows=dict(type=int, default=8),
        length=dict(type=int, default=512),
        micro_batch_tokens=dict(type=int, default=1024, help="of ours, whose gradients are added up"),
        remat=dict(action=argparse.BooleanOptionalAction, default=True, help="ours recomputes its layers"),
    )
    record = harness.Record(options, networks.limits())
    for name in filter(None, options.networks.split(",")):
        for dtype in options.dtypes.split(","):
            step(record, name, dtype, options)
    memory(record)


if __name__ == "__main__":
    main()
