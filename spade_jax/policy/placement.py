"""Where the axis rules in force put a logical axis on the mesh in force, for what has to be mapped over it by hand."""

from __future__ import annotations

import jax
from flax import linen as nn


def mesh_axes(name: str) -> tuple[str, ...]:
    """Mesh axes of more than one device that shard the logical axis; () off a mesh or without rules."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or not nn.get_logical_axis_rules():
        return ()
    (found,) = nn.logical_to_mesh_axes((name,))
    names = (found,) if isinstance(found, str) else tuple(found or ())
    return tuple(axis for axis in names if mesh.shape.get(axis, 1) > 1)
