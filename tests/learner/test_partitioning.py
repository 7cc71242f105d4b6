from __future__ import annotations

import pytest

from spade_jax.learner.partitioning import mesh_sizes


def test_the_free_axis_takes_the_rest():
    assert mesh_sizes(1) == {"data": 1, "fsdp": 1, "tensor": 1, "expert": 1}
    assert mesh_sizes(8, tensor=2) == {"data": 4, "fsdp": 1, "tensor": 2, "expert": 1}
    assert mesh_sizes(8, data=2, fsdp=-1, tensor=2) == {"data": 2, "fsdp": 2, "tensor": 2, "expert": 1}
    assert list(mesh_sizes(8)) == ["data", "fsdp", "tensor", "expert"]


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ({"tensor": 3}, r"mesh.tensor=3, .* cannot be laid over 8 device\(s\).*divides 8"),
        ({"data": 4}, r"use sizes whose product is 8"),
        ({"data": 16}, r"cannot be laid over 8"),
        ({"fsdp": -1}, r"mesh.data=-1 and mesh.fsdp=-1 both take the rest"),
        ({"fsdp": 0}, r"mesh.fsdp=0 is not a size"),
        ({"expert": -2}, r"mesh.expert=-2 is not a size"),
    ],
)
def test_impossible_sizes(axes, message):
    with pytest.raises(ValueError, match=message):
        mesh_sizes(8, **axes)
