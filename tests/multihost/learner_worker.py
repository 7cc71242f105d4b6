"""Advantages, one update of two optimiser steps and one supervised step on a fixed problem, on several meshes.

    python learner_worker.py OUT.npz MESH [MESH ...] [--coordinator ADDRESS --processes P --process I]

MESH is data,fsdp,tensor,expert. Every process holds the same trajectories, and its share of the supervised rows.
Process 0 writes, for each mesh, the resulting parameters, metrics and baselines; whatever the mesh, they must agree.
"""

from __future__ import annotations

import argparse
import dataclasses

import jax
import numpy as np

from spade_jax.learner import advantage, batch, objective, partitioning, state, step, supervised
from spade_jax.policy import Decoder, DecoderConfig
from spade_jax.structs import Trajectory

CONFIG = DecoderConfig(
    vocab_size=32, embed_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=32, remat=True
)


def trajectories() -> list[Trajectory]:
    rng = np.random.default_rng(0)
    out = []
    for i in range(24):
        n = int(rng.integers(4, 17))
        mask = np.arange(n) >= n // 3
        logp = np.where(mask, rng.normal(-3.5, 0.3, n), 0.0).astype(np.float32)
        tokens = rng.integers(0, 32, n).astype(np.int32)
        out.append(Trajectory(tokens, mask, logp, i % 2, i % 3, float(rng.normal()), temperature=0.8, weight=1 + i % 2))
    return out


def run(mesh: jax.sharding.Mesh) -> dict[str, np.ndarray]:
    everything, processes, process = trajectories(), jax.process_count(), jax.process_index()
    model = Decoder(CONFIG)
    optimizer = state.make_optimizer(state.OptimizerConfig(learning_rate=1e-2, eps=1e-3), model)
    train = state.init_state(model, optimizer, mesh, seed=0, num_baselines=3)

    advantages, keep, baselines = advantage.estimate_on_hosts(
        mesh,
        np.array([t.episode_return for t in everything]),
        np.array([t.role for t in everything]),
        np.array([t.group for t in everything]),
        np.ones(len(everything), bool),
        train.baselines,
        estimators=("ema", "leave_one_out"),
        num_groups=3,
    )
    train = train._replace(baselines=baselines)
    kept = [dataclasses.replace(t, weight=t.weight * float(k)) for t, k in zip(everything, keep, strict=True)]

    buckets = batch.BucketConfig((8, 16), tokens_per_micro_batch=64, row_multiple=partitioning.batch_shards(mesh))
    minibatches, _ = batch.pack(kept, advantages, buckets)
    config = step.UpdateConfig(objective.ObjectiveConfig(kl_coefficient=0.1), epochs=2, chunk=4)
    # The reference is the same network moved a little, sharded like the parameters.
    shardings = state.param_shardings(model, mesh)
    with partitioning.activate(mesh):
        reference = jax.jit(lambda p: jax.tree.map(lambda x: 1.1 * x, p), out_shardings=shardings)(train.params)
    train, metrics = step.make_update(model, optimizer, mesh, config)(train, minibatches, reference)

    rows = np.random.default_rng(1).integers(0, 32, (16, 12))
    local = np.split(rows, processes)[process]
    train, supervised_metrics = supervised.make_supervised_step(model, optimizer, mesh, micro_batches=2)(
        train, local, np.ones(local.shape)
    )
    with partitioning.activate(mesh):
        whole = jax.jit(lambda x: x, out_shardings=partitioning.replicated(mesh))(train)
    out = {jax.tree_util.keystr(k): np.asarray(v) for k, v in jax.tree_util.tree_leaves_with_path(whole.params)}
    out |= {name: np.asarray(value) for name, value in metrics.items()}
    out |= {f"supervised/{name}": np.asarray(value) for name, value in supervised_metrics.items()}
    out["baselines"], out["step"] = np.asarray(whole.baselines), np.asarray(whole.step)
    out["advantages"] = advantages
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("meshes", nargs="+")
    parser.add_argument("--coordinator")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--process", type=int, default=0)
    args = parser.parse_args()
    if args.coordinator:
        jax.distributed.initialize(args.coordinator, args.processes, args.process)
        jax.config.update("jax_enable_compilation_cache", False)  # as `distributed.join` does, and says why
    results = {}
    for text in args.meshes:
        data, fsdp, tensor, expert = map(int, text.split(","))
        mesh = partitioning.make_mesh(data=data, fsdp=fsdp, tensor=tensor, expert=expert)
        results |= {f"{text}|{name}": value for name, value in run(mesh).items()}
    if jax.process_index() == 0:
        np.savez(args.out, **results)


if __name__ == "__main__":
    main()
