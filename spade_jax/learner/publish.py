"""New weights for the samplers: from the learner's mesh over all processes to every process's own.

A sampler runs at its own pace, so no array of its own may need another process. The weights are cast, then laid out
anew, replicated over processes and sharded within each as the learner's are; every process wraps what its own devices
hold as arrays of its own mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from spade_jax.learner.partitioning import AXES
from spade_jax.learner.state import param_shardings
from spade_jax.policy import Decoder, cast_params

_HOST = "host"


def local_mesh(mesh: Mesh) -> Mesh:
    """This process's devices under the axes of `mesh`, the last ones as long as they fit; of one process, `mesh`."""
    if jax.process_count() == 1:
        return mesh
    return _mesh(_devices(mesh)[jax.process_index()], AXES)


def make_publish(
    model: Decoder, mesh: Mesh, dtype: str | None, *, outlives_update: bool = False
) -> Callable[[Any], Any]:
    """Builds `publish(params) -> params on local_mesh(mesh)`; every process calls it together.

    Several processes get copies of their own. A single one gets back what it gives, which the next update consumes,
    unless that is still to be drawn with while the update goes on.

    Args:
      dtype: what the weights of a copy are cast to, None to leave them.
      outlives_update: copies in a single process, too.
    """
    if jax.process_count() == 1:
        if not outlives_update:
            return lambda params: params
        # A cast alone would hand on the learner's own buffers where it changes nothing.
        return jax.jit(
            lambda params: jax.tree.map(jnp.copy, cast_params(params, dtype) if dtype else params),
            out_shardings=param_shardings(model, mesh),
        )
    shardings = param_shardings(model, _mesh(_devices(mesh), (_HOST, *AXES)))
    own = param_shardings(model, local_mesh(mesh))
    cast = jax.jit(lambda params: cast_params(params, dtype)) if dtype else lambda params: params

    def publish(params: Any) -> Any:
        # Not by the jit itself: the devices may stand in another order than in the learner's mesh (TPU slices).
        spread = jax.device_put(cast(params), shardings)

        def wrap(x: jax.Array, sharding: jax.sharding.NamedSharding) -> jax.Array:
            shards = [shard.data for shard in x.addressable_shards]
            return jax.make_array_from_single_device_arrays(x.shape, sharding, shards)

        return jax.tree.map(wrap, spread, own)

    return publish


def local_sizes(sizes: Mapping[str, int], devices: int) -> dict[str, int]:
    """Sizes of the axes of the mesh of a process with `devices` devices, where the learner's has `sizes`."""
    found = {}
    for axis in reversed(AXES):
        # Divisors of the learner's sizes, so that what divides by these divides by those.
        found[axis] = math.gcd(sizes[axis], devices)
        devices //= found[axis]
    return {axis: found[axis] for axis in AXES}


def _devices(mesh: Mesh) -> np.ndarray:
    """Device[process, data, fsdp, tensor, expert]: each process's devices as its own mesh has them."""
    by_process = [[d for d in mesh.devices.flat if d.process_index == i] for i in range(jax.process_count())]
    return np.array(by_process).reshape(-1, *local_sizes(mesh.shape, len(by_process[0])).values())


def _mesh(devices: np.ndarray, axes: tuple[str, ...]) -> Mesh:
    return Mesh(devices, axes, axis_types=(jax.sharding.AxisType.Auto,) * len(axes))
