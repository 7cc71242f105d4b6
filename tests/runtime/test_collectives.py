"""Bytes on the wire, against counts by hand."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from spade_jax.runtime import collectives
from spade_jax.runtime.collectives import Traffic

ROOT = pathlib.Path(__file__).parents[2]

_PROGRAM = """
import json
import jax, jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from spade_jax.runtime import collectives

mesh = jax.make_mesh((2, 4), ("data", "tensor"), axis_types=(AxisType.Auto,) * 2)

def place(shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))

def layers(x_BxD, w_LxDxF):
    return jax.lax.scan(lambda h, w: (jnp.tanh(h @ w) @ w.T, None), x_BxD, w_LxDxF)[0]

def counted(f, out, *args):
    return collectives.count(jax.jit(f, out_shardings=NamedSharding(mesh, out)).lower(*args).compile().as_text())

rows = place((8, 16), "data")
print(json.dumps({
    "loop": counted(layers, P("data"), rows, place((3, 16, 32), None, None, "tensor")),
    "gather": counted(lambda x: x * 2, P(), rows),
    "nothing": counted(lambda x: x * 2, P("data"), rows),
}))
"""


@pytest.mark.slow
def test_compiled_programs_send_what_is_counted_by_hand():
    env = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
    run = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    # 4 of 8 rows of 16 floats a device, summed over 4 devices in each of 3 layers: 2 * 3/4 of 256 bytes.
    assert found["loop"] == {"all-reduce": [3, 3 * 2 * 0.75 * 256]}
    # The whole of 512 bytes, of which a device has one half.
    assert found["gather"] == {"all-gather": [1, 256]}
    assert found["nothing"] == {}


_LOOP = """HloModule test

%add (a: f32[], b: f32[]) -> f32[] {
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], bf16[4,8])) -> (s32[], bf16[4,8]) {
  %p = (s32[], bf16[4,8]{1,0}) parameter(0)
  %x = bf16[4,8]{1,0} get-tuple-element(%p), index=1
  %r = bf16[2,8]{1,0} reduce-scatter(%x), replica_groups=[4,2]<=[8], dimensions={0}, to_apply=%add
  %s = bf16[2,8]{1,0} collective-permute(%r), source_target_pairs={{0,1},{1,0}}
  %t = (bf16[1,8]{1,0}, bf16[1,8]{1,0}) all-to-all(%s, %s), replica_groups={{0,1},{2,3}}
  ROOT %y = (s32[], bf16[4,8]{1,0}) tuple(%p, %s)
}

%test (p: (s32[], bf16[4,8])) -> pred[] {
  ROOT %less = pred[] constant(false)
}

ENTRY %main (x: bf16[4,8]) -> bf16[4,8] {
  %x = bf16[4,8]{1,0} parameter(0)
  %loop = (s32[], bf16[4,8]{1,0}) while(%x), condition=%test, body=%body, backend_config={"known_trip_count":{"n":"5"}}
  %g = bf16[8,8]{1,0} all-gather(%x), replica_groups=mesh['a'=2,'b'=4] {'a','b':(2)2}, dimensions={0}
  ROOT %z = bf16[4,8]{1,0} get-tuple-element(%loop), index=1
}
"""


def test_every_operation_and_every_way_to_name_a_group():
    assert collectives.count(_LOOP) == {
        "reduce-scatter": Traffic(5, 5 * 32),  # half of 64 bytes
        "collective-permute": Traffic(5, 5 * 32),
        "all-to-all": Traffic(5, 5 * 16),
        "all-gather": Traffic(1, 0.75 * 128),
    }


def test_loops_of_unknown_length_are_refused_unless_their_rounds_are_given():
    unknown = _LOOP.replace("known_trip_count", "something")
    with pytest.raises(ValueError, match="unknown number of times"):
        collectives.count(unknown)
    assert collectives.count(unknown, rounds=5) == collectives.count(_LOOP, rounds=7) == collectives.count(_LOOP)
