"""Where every array lives: the mesh, the one table of sharding rules, host arrays to global arrays.

The model names its axes ("embed", "heads", ...) and knows nothing of meshes; this table maps those names to
mesh axes. All meshes have the same four axes, of which any may have size 1, so one program serves one CPU,
one accelerator and many hosts.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from spade_jax.policy.weights import LazyParameter

AXES = ("data", "fsdp", "tensor", "expert")
BATCH_AXES = ("data", "fsdp", "expert")  # experts are spread over devices that hold rows of their own

MeshAxes = str | tuple[str, ...] | None
Rules = Mapping[str, MeshAxes]

# Logical axis -> mesh axis. Names that are absent here are an error, so that a new axis in a model cannot be
# replicated by oversight.
DEFAULT_RULES: Rules = {
    "batch": BATCH_AXES,
    "embed": "fsdp",
    "heads": "tensor",
    "kv_heads": "tensor",
    "mlp": "tensor",
    "vocab": "tensor",
    "experts": "expert",
    "router": None,
    "lora": None,
    "layers": None,
    "head_dim": None,
    "length": None,
    "norm": None,
}


def mesh_sizes(devices: int, *, data: int = -1, fsdp: int = 1, tensor: int = 1, expert: int = 1) -> dict[str, int]:
    """Sizes of the mesh axes in the order of AXES; at most one may be -1, which takes the devices the others leave.

    Raises:
      ValueError: the sizes cannot cover exactly `devices` devices.
    """
    sizes = dict(zip(AXES, (data, fsdp, tensor, expert), strict=True))
    for axis, size in sizes.items():
        if size < 1 and size != -1:
            raise ValueError(f"mesh.{axis}={size} is not a size; use a positive number, or -1 to take the rest")
    free = [axis for axis, size in sizes.items() if size == -1]
    if len(free) > 1:
        raise ValueError(f"mesh.{free[0]}=-1 and mesh.{free[1]}=-1 both take the rest; give all but one a size")
    fixed = math.prod(size for size in sizes.values() if size != -1)
    if devices % fixed or (not free and fixed != devices):
        shown = ", ".join(f"mesh.{axis}={size}" for axis, size in sizes.items())
        remedy = f"use sizes whose product {'divides' if free else 'is'} {devices}"
        raise ValueError(f"{shown} cannot be laid over {devices} device(s); {remedy}")
    return {axis: devices // fixed if size == -1 else size for axis, size in sizes.items()}


def make_mesh(**axes: int) -> Mesh:
    """A mesh over all devices, sized as by `mesh_sizes`, all axes Auto (Linen's logical constraints need that)."""
    sizes = mesh_sizes(jax.device_count(), **axes)
    return jax.make_mesh(tuple(sizes.values()), AXES, axis_types=(jax.sharding.AxisType.Auto,) * len(AXES))


@contextlib.contextmanager
def activate(mesh: Mesh, rules: Rules = DEFAULT_RULES) -> Iterator[None]:
    """The mesh and rules under which a jitted function is traced and called."""
    with jax.set_mesh(mesh), nn.logical_axis_rules(tuple(rules.items())):
        yield


def mesh_spec(logical: PartitionSpec, rules: Rules = DEFAULT_RULES) -> PartitionSpec:
    """The mesh axes of one array's logical axes; a mesh axis shards the first dimension that asks for it."""
    used: set[str] = set()
    out: list[MeshAxes] = []
    for name in logical:
        if name is not None and name not in rules:
            raise ValueError(f"logical axis {name!r} has no sharding rule; add it to the rules table")
        axes = None if name is None else rules[name]
        flat = (axes,) if isinstance(axes, str) else tuple(axes or ())
        out.append(None if used & set(flat) else axes)
        used |= set(flat)
    return PartitionSpec(*out)


def tree_shardings(logical: Any, abstract: Any, mesh: Mesh, rules: Rules = DEFAULT_RULES) -> Any:
    """NamedShardings of a tree of arrays.

    Args:
      logical: tree of logical PartitionSpecs.
      abstract: the same tree with anything that has a shape as leaves.

    Raises:
      ValueError: a dimension is not divisible by the mesh axes it is sharded over.
    """

    def leaf(path: Any, spec: PartitionSpec, array: Any) -> NamedSharding:
        resolved = mesh_spec(spec, rules)
        for dim, axes in enumerate(resolved):
            names = (axes,) if isinstance(axes, str) else tuple(axes or ())
            parts = math.prod(mesh.shape[a] for a in names)
            if array.shape[dim] % parts:
                raise ValueError(
                    f"mesh.{'*'.join(names)}={parts} does not divide dimension {dim} (size {array.shape[dim]}, logical "
                    f"axis {spec[dim]!r}) of {jax.tree_util.keystr(path)}; use a divisor of {array.shape[dim]}"
                )
        return NamedSharding(mesh, resolved)

    return jax.tree_util.tree_map_with_path(leaf, logical, abstract, is_leaf=lambda x: isinstance(x, PartitionSpec))


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def batch_sharding(mesh: Mesh, *, row_axis: int = 0) -> NamedSharding:
    """Rows over all data-parallel devices; `row_axis` is 1 for micro-batches stacked in front."""
    return NamedSharding(mesh, PartitionSpec(*(None,) * row_axis, BATCH_AXES))


def batch_shards(mesh: Mesh) -> int:
    """Row counts (over all processes together) must be a multiple of this."""
    return math.prod(mesh.shape[axis] for axis in BATCH_AXES)


def _explicit() -> contextlib.AbstractContextManager[None]:
    """JAX calls these constructors' transfers implicit, but asking for one by name is what the guard is to let pass."""
    return jax.transfer_guard("allow")


def global_rows(mesh: Mesh, tree: Any, *, row_axis: int = 0) -> Any:
    """Every process's own rows (NumPy, equally many in each) to global arrays sharded by row.

    Raises:
      ValueError: the rows do not divide evenly over the data-parallel devices.
    """
    sharding, shards = batch_sharding(mesh, row_axis=row_axis), batch_shards(mesh)

    def put(x: Any) -> jax.Array:
        x = np.asarray(x)
        rows = x.shape[row_axis] * jax.process_count()
        if rows % shards:
            raise ValueError(
                f"{rows} batch rows do not divide over mesh data*fsdp={shards}; use a multiple of {shards}"
            )
        return jax.make_array_from_process_local_data(sharding, x)

    with _explicit():
        return jax.tree.map(put, tree)


def global_copies(mesh: Mesh, tree: Any, shardings: Any = None) -> Any:
    """The same host arrays, held by every process, to global arrays (replicated unless `shardings` says more)."""

    def put(x: Any, sharding: NamedSharding) -> jax.Array:
        if not isinstance(x, LazyParameter):  # of which each process reads what its devices hold
            x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    if shardings is None:
        shardings = jax.tree.map(lambda _: replicated(mesh), tree)
    with _explicit():
        return jax.tree.map(put, tree, shardings)


def fetch(tree: Any) -> Any:
    """Global arrays to whole host arrays in every process, which all call it; one leaf at a time on the devices."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    return jax.tree.map(lambda x: multihost_utils.process_allgather(x, tiled=True), tree)
