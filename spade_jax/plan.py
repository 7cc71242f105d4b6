"""Whether a config fits the devices that it is meant for, before any of them is rented.

    python -m spade_jax.plan --config=configs/spade_qwen3_4b.py --devices=8 --device_kind=h100-80g

Compiles the learner's gradient for as many simulated devices, and a prefill and a decode block for those of one
process, with shapes in place of weights, and prints what each device would hold, what it would send to the others and
how fast it could be at best.
`policy.init` may be a folder with nothing but the model's config.json. Temporary memory and communication are those
that XLA's CPU compiler plans for operations that run one after another: a guide, no promise. It holds some of what is
bfloat16 in float32, and the scores of attention, which the kernels for GPUs and TPUs never hold.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import NamedSharding
from ml_collections import ConfigDict, config_flags

from spade_jax import compose
from spade_jax.learner import partitioning, publish
from spade_jax.learner import state as state_lib
from spade_jax.learner.batch import Stack
from spade_jax.learner.batch import pack as pack_rows
from spade_jax.learner.objective import Sums
from spade_jax.learner.step import make_accumulate
from spade_jax.policy import (
    Decoder,
    cache_spec,
    cast_params,
    count_active_params,
    count_params,
    init_cache,
    split_adapters,
    split_layers,
    unrolled_params,
)
from spade_jax.runtime import app, checks, collectives
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.flops import training_flops
from spade_jax.runtime.presets import resolve_preset
from spade_jax.sampler import SamplingConfig
from spade_jax.sampler.decode import SlotState, decode_block, prefill, shares
from spade_jax.sampler.engine import largest_prefill, sampling_params
from spade_jax.sampler.sampling import pack
from spade_jax.structs import Trajectory

_CONFIG = config_flags.DEFINE_config_file("config", None, "The configuration to be planned.")
_DEVICES = flags.DEFINE_integer("devices", 8, "Number of devices, of all processes together.", lower_bound=1)
_PROCESSES = flags.DEFINE_integer("processes", 1, "Number of processes, that is of hosts as a rule.", lower_bound=1)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One device by its maker's data sheet: memory in bytes, dense bf16 flop/s, bytes/s of its memory."""

    memory: float
    flops: float
    bandwidth: float


KINDS = {
    "a100-40g": Kind(40e9, 312e12, 1.56e12),
    "a100-80g": Kind(80e9, 312e12, 2.04e12),
    "h100-80g": Kind(80e9, 989e12, 3.35e12),
    "h200": Kind(141e9, 989e12, 4.8e12),
    "v5e": Kind(16e9, 197e12, 0.82e12),
    "v5p": Kind(95e9, 459e12, 2.77e12),
    "v6e": Kind(32e9, 918e12, 1.64e12),
}
_KIND = flags.DEFINE_enum("device_kind", "h100-80g", tuple(KINDS), "What they are.")
_USABLE = 0.92  # share of the memory that is not the driver's and the allocator's
# Accelerators run one operation after another, in an order that saves memory. Compiled to run side by side, as CPUs
# would, what is temporary takes several times as much.
_IN_ORDER = "--xla_cpu_enable_concurrency_optimized_scheduler=false"


def main(argv: Sequence[str]) -> None:
    del argv
    config = resolve_preset(_CONFIG.value)
    checks.check_config(config)
    checks.check_processes(config, _PROCESSES.value)
    if _DEVICES.value % _PROCESSES.value:
        raise UsageError(
            f"--devices={_DEVICES.value} are not shared evenly by --processes={_PROCESSES.value}; use a divisor"
        )
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_IN_ORDER}"  # read when the backend starts
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", _DEVICES.value)
    kind = KINDS[_KIND.value]
    shape = compose.shape(config)
    model = Decoder(shape)
    try:
        mesh = partitioning.make_mesh(**config.mesh.to_dict())
    except ValueError as error:
        raise UsageError(str(error)) from error
    checks.check_mesh(dict(mesh.shape), dataclasses.asdict(shape))

    own = sampler_mesh(mesh, _PROCESSES.value)
    held, gradient = resident(config, model, mesh, own), compile_gradient(config, model, mesh)
    prefilled, decoded = compile_sampler(config, model, own)
    needed = temporary(config, model, mesh, own, gradient, prefilled, decoded)
    new, kept = handed_over(config, model, mesh, own)
    if new:
        needed["new weights beside the old"] = new + (kept if own.size < mesh.size else 0.0)
    if _sampler_params(config, model) != state_lib.abstract_params(model) and not (new and _plain(config, model)):
        needed["sampler's layers, not cut up yet"] = layer_bytes(config, model, own)
    overlapping = config.rollout.max_staleness > 0  # then the sampler needs its own beside the update
    total = sum(held.values()) + (sum if overlapping else max)(needed.values())
    axes = ", ".join(f"{axis} {size}" for axis, size in mesh.shape.items())
    hosts = f", {_PROCESSES.value} processes" if _PROCESSES.value > 1 else ""
    print(f"{_DEVICES.value} x {_KIND.value}{hosts}: {axes}; GB per device")
    for name, size in held.items():
        print(f"  {name:<34}{size / 1e9:>9.2f}")
    for name, size in needed.items():
        when = "beside the others" if overlapping else "only the largest of these at a time"
        print(f"  {name:<34}{size / 1e9:>9.2f}   ({when})")
    room = kind.memory * _USABLE
    print(f"  {'in all':<34}{total / 1e9:>9.2f}   of {room / 1e9:.1f} usable")
    fits = total <= room
    print("fits" if fits else f"does not fit: {remedy(held | needed)}")
    print(f"each device sends {_sent(collectives.count(gradient.as_text()))} per micro-batch")
    block = config.sampler.block
    print(f"each device sends {_sent(collectives.count(decoded.as_text(), block), block)} per decode step")
    print(f"each device sends {_sent(collectives.count(prefilled.as_text()))} per prefill")
    if _PROCESSES.value > 1:
        print(f"each device receives {(new - kept) / 1e9:.3g} GB of new weights per update")

    parts = state_lib.split_trained(model, state_lib.abstract_params(model))
    trained, frozen = (count_active_params(part, shape) for part in parts)
    again = 2 * (trained + frozen) if shape.remat else 0  # the forward pass, recomputed
    tokens = math.prod(micro_batch(config, mesh))
    flops = (training_flops(trained, frozen) + again) * tokens
    print(f"micro-batch of {tokens} tokens: at best {flops / (_DEVICES.value * kind.flops):.2f} s")
    read = sampler_bytes(config, model, own) + held["cache"]
    print(f"decode step of {config.sampler.slots} slots at full context: at best {read / kind.bandwidth * 1e3:.1f} ms")


def _sent(traffic: dict[str, collectives.Traffic], times: int = 1) -> str:
    parts = [f"{name} {operation.sent / times / 1e9:.3g}" for name, operation in sorted(traffic.items())]
    total = sum(operation.sent for operation in traffic.values()) / times
    return f"{total / 1e9:.3g} GB ({', '.join(parts) or 'nothing'})"


def sampler_mesh(mesh: jax.sharding.Mesh, processes: int) -> jax.sharding.Mesh:
    """The mesh of one of several processes, as `publish.local_mesh` makes it."""
    if processes == 1:
        return mesh
    devices = mesh.size // processes
    sizes = publish.local_sizes(mesh.shape, devices)
    return jax.make_mesh(
        tuple(sizes.values()), tuple(sizes), axis_types=mesh.axis_types, devices=jax.devices()[:devices]
    )


def bytes_per_device(tree: Any, shardings: Any) -> float:
    """Bytes of the shards of a tree of shapes on one device."""
    return float(
        sum(
            math.prod(sharding.shard_shape(leaf.shape)) * _itemsize(leaf.dtype)
            for leaf, sharding in zip(jax.tree.leaves(tree), jax.tree.leaves(shardings), strict=True)
        )
    )


def _itemsize(dtype: Any) -> int:
    return 8 if jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key) else jnp.dtype(dtype).itemsize


def _sampler_params(config: ConfigDict, model: Decoder) -> Any:
    shapes = state_lib.abstract_params(model)
    return jax.eval_shape(lambda params: sampling_params(params, model.config, config.sampler.weight_dtype), shapes)


def _cache(config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh) -> tuple[Any, NamedSharding]:
    sampler = config.sampler
    shapes = jax.eval_shape(
        lambda: split_layers(init_cache(model.config, sampler.slots, sampler.context, sampler.cache_dtype))
    )
    return shapes, NamedSharding(mesh, cache_spec(mesh, sampler.slots, model.config.num_kv_heads))


def sampler_bytes(config: ConfigDict, model: Decoder, own: jax.sharding.Mesh) -> float:
    """Of the weights that a device draws with."""
    params, sampler = state_lib.abstract_params(model), _sampler_params(config, model)
    # What the conversion makes of a weight stays where the weight is; the divisors of int8 are next to nothing.
    share = bytes_per_device(params, state_lib.param_shardings(model, own)) / _size(params)
    return share * _size(sampler)


def layer_bytes(config: ConfigDict, model: Decoder, own: jax.sharding.Mesh) -> float:
    """Of these, of the layers'."""
    sampler = _sampler_params(config, model)
    return sampler_bytes(config, model, own) * count_params(sampler["layers"]) / count_params(sampler)


def _size(tree: Any) -> float:
    return float(sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree)))


def _plain(config: ConfigDict, model: Decoder) -> bool:
    """Whether the sampler draws with the weights themselves, cast."""
    return config.sampler.weight_dtype == "policy" and model.config.lora is None


def handed_over(
    config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh, own: jax.sharding.Mesh
) -> tuple[float, float]:
    """Bytes of the copy that the learner hands to the sampler on a device, and of what was there already of it.

    (0, 0) where it hands over its own arrays: a single process whose rollouts wait for updates.
    """
    if own.size == mesh.size and not config.rollout.max_staleness:
        return 0.0, 0.0
    shapes = state_lib.abstract_params(model)
    if _plain(config, model):
        shapes = jax.eval_shape(lambda params: cast_params(params, model.config.dtype), shapes)
    new, kept = (bytes_per_device(shapes, state_lib.param_shardings(model, on)) for on in (own, mesh))
    return new, kept


def resident(
    config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh, own: jax.sharding.Mesh
) -> dict[str, float]:
    """What a device holds throughout a step, in bytes, of the learner on `mesh` and of its process's sampler."""
    params, shardings = state_lib.abstract_params(model), state_lib.param_shardings(model, mesh)
    trained, trained_shardings = (state_lib.split_trained(model, tree)[0] for tree in (params, shardings))
    optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
    moments = jax.eval_shape(optimizer.init, trained)
    moment_shardings = state_lib.state_shardings(model, optimizer, mesh).opt_state
    weights, gradient = bytes_per_device(params, shardings), bytes_per_device(trained, trained_shardings)
    cache, cache_sharding = _cache(config, model, own)
    drawn, layers = sampler_bytes(config, model, own), layer_bytes(config, model, own)
    handed, _ = handed_over(config, model, mesh, own)
    if handed and _plain(config, model):
        beside = drawn  # all of the copy, which stays
    else:  # embedding, head and norms, where they are not the learner's own
        beside = drawn - layers if _sampler_params(config, model) != params else 0.0
    return {
        "weights": weights,
        "gradient": gradient,
        "optimiser": bytes_per_device(moments, moment_shardings),
        "reference policy": gradient if config.learner.kl_coefficient > 0 else 0.0,
        # What the sampler's are converted from, where that is a copy.
        "weights behind the sampler's": 0.0 if _plain(config, model) else handed,
        "sampler's weights": beside,
        "sampler's layers": layers,  # cut up
        "cache": bytes_per_device(cache, jax.tree.map(lambda _: cache_sharding, cache)),
    }


def placed_params(model: Decoder, mesh: jax.sharding.Mesh) -> Any:
    """Shapes of the parameters, and where they are."""
    return jax.tree.map(_placed, state_lib.abstract_params(model), state_lib.param_shardings(model, mesh))


def temporary(
    config: ConfigDict,
    model: Decoder,
    mesh: jax.sharding.Mesh,
    own: jax.sharding.Mesh,
    gradient: jax.stages.Compiled,
    prefilled: jax.stages.Compiled,
    decoded: jax.stages.Compiled,
) -> dict[str, float]:
    """What a device needs within a compiled function beyond its arguments, in bytes."""
    (count, length), (R, P) = micro_batch(config, mesh), _prompt(config, model, own)
    return {
        f"gradient of {count} x {length} tokens": _temporary(gradient),
        f"prefill of {R} x {P} tokens": _temporary(prefilled),
        f"decode block of {config.sampler.block} steps": _temporary(decoded),
    }


def _prompt(config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh) -> tuple[int, int]:
    """Rows and tokens of the largest prefill at full context."""
    parts = shares(_cache(config, model, mesh)[1])
    rows, tokens = largest_prefill(model.config, parts, config.sampler.cache_dtype, config.sampler.context)
    return rows * parts, tokens


def compile_sampler(
    config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh
) -> tuple[jax.stages.Compiled, jax.stages.Compiled]:
    """A prefill and a decode block of one process, all slots busy, at full context."""
    placed = placed_params(model, mesh)
    sampler, decoder = config.sampler, Decoder(model.config.merged, unrolled=True)
    _, low = split_adapters(placed)
    if sampler.weight_dtype == "policy":
        low = cast_like(low, _sampler_params(config, model))
    low = layerwise(low, decoder.config.num_layers)
    shapes, sharding = _cache(config, model, mesh)
    cache = jax.tree.map(lambda s: _placed(s, sharding), shapes)
    R, P = _prompt(config, model, mesh)
    numbers = np.zeros(R, np.int32)
    with jax.set_mesh(mesh):
        filled = prefill.lower(
            decoder, low, cache, np.zeros((R, P), np.int32), numbers, numbers, numbers,
            window=sampler.context, sharding=sharding,
        ).compile()  # fmt: skip
        slots = np.zeros(sampler.slots, np.int32)
        state = SlotState(
            slots, slots, slots, np.zeros((sampler.slots, 2), np.uint32), pack([SamplingConfig()] * sampler.slots)
        )
        decoded = decode_block.lower(
            decoder, low, cache, state, None, jax.random.key(0), 0,
            steps=sampler.block, window=sampler.context, sharding=sharding,
        ).compile()  # fmt: skip
    return filled, decoded


def micro_batch(config: ConfigDict, mesh: jax.sharding.Mesh) -> tuple[int, int]:
    """Rows and tokens of a micro-batch of the longest bucket."""
    buckets = compose.buckets(config, mesh)
    return buckets.rows(buckets.lengths[-1]), buckets.lengths[-1]


def compile_gradient(config: ConfigDict, model: Decoder, mesh: jax.sharding.Mesh) -> jax.stages.Compiled:
    """The learner's update of its gradient by a micro-batch of the longest bucket."""
    params, (_, length) = placed_params(model, mesh), micro_batch(config, mesh)
    row = Trajectory(np.zeros(length, np.int32), np.ones(length, bool), np.zeros(length, np.float32), 0, 0, 0.0)
    [[stack]], _ = pack_rows([row], np.ones(1, np.float32), compose.buckets(config, mesh))
    rows, whole = partitioning.batch_sharding(mesh, row_axis=1), partitioning.replicated(mesh)
    batch = jax.tree.map(lambda x: _placed(x[:1], rows), stack.batch)  # alone, so that its loop is one round
    trained, _ = state_lib.split_trained(model, params)
    gradient = jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.shape, jnp.float32, sharding=s.sharding), trained)
    router = (model.config.num_layers, 2, model.config.num_experts) if model.config.num_experts else None
    sums = jax.tree.map(lambda x: _placed(x, whole), jax.eval_shape(lambda: Sums.zero(router)))
    state = state_lib.TrainState(params, None, jax.ShapeDtypeStruct((), jnp.int32, sharding=whole), None, None)
    reference = batch.behaviour_logp if config.learner.kl_coefficient > 0 else None
    accumulate = make_accumulate(model, mesh, compose.update_config(config))
    with partitioning.activate(mesh):
        return accumulate.lower(
            (gradient, sums), state, Stack(batch, _placed(stack.count, whole)), batch.behaviour_logp, reference,
            jax.ShapeDtypeStruct((), bool, sharding=whole),
        ).compile()  # fmt: skip


def _placed(array: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)


def cast_like(placed: Any, wanted: Any) -> Any:
    """Shapes with their shardings, in the other tree's precision."""
    return jax.tree.map(lambda s, w: jax.ShapeDtypeStruct(s.shape, w.dtype, sharding=s.sharding), placed, wanted)


def layerwise(placed: Any, num_layers: int) -> Any:
    """What the sampler decodes with: shapes and shardings as `policy.unrolled_params` leaves them."""
    shapes = jax.eval_shape(lambda params: unrolled_params(params, num_layers), placed)
    own = {
        f"layers_{i}": jax.tree.map(
            lambda s: NamedSharding(s.sharding.mesh, jax.sharding.PartitionSpec(*s.sharding.spec[1:])),
            placed["layers"],
        )
        for i in range(num_layers)
    }
    rest = {name: jax.tree.map(lambda s: s.sharding, value) for name, value in placed.items() if name != "layers"}
    return jax.tree.map(lambda s, where: jax.ShapeDtypeStruct(s.shape, s.dtype, sharding=where), shapes, rest | own)


def _temporary(compiled: Any) -> float:
    return float(compiled.memory_analysis().temp_size_in_bytes)


def remedy(sizes: dict[str, float]) -> str:
    """What to change, for what takes the most."""
    largest = max(sizes, key=sizes.get)
    if largest == "cache":
        advice = "lower sampler.slots or sampler.context, or use sampler.cache_dtype=bfloat16"
    elif largest.startswith("gradient of"):
        advice = (
            "lower learner.micro_batch_tokens, the longest of learner.buckets or learner.vocab_chunk, or set "
            "policy.remat; the scores of attention are in this figure, which policy.attention=cudnn does not hold"
        )
    elif largest.startswith(("prefill", "decode")):
        advice = "lower sampler.context or sampler.slots"
    else:
        advice = "raise mesh.fsdp, mesh.tensor or, for experts, mesh.expert, or take more devices"
    return f"{largest} takes the most, {sizes[largest] / 1e9:.1f} GB; {advice}"


def run() -> None:
    flags.mark_flags_as_required(["config"])
    app.run(main)


if __name__ == "__main__":
    run()
