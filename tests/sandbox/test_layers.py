"""The isolation layers as this machine has them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from spade_jax.sandbox import Limits, Pool, layers
from spade_jax.sandbox.layers import LayerStatus

ROOT = pathlib.Path(__file__).parents[2]

# A survey forks, which this process must not where another test has started JAX.
SURVEY = """
import dataclasses, json, os
from spade_jax.sandbox import Limits, layers
def refuse(context):
    raise OSError(1, "no such thing here")
def through(context):
    return "it got through"
def broken(context):
    raise KeyError("x")
layers.default_signals()
context = layers.Context(Limits(), layers.address_space_bytes(), 4096, os.getpid(), -1)
print(json.dumps([dataclasses.astuple(status) for status in layers.survey({wanted}, context)]))
"""


def survey(wanted: str) -> dict[str, LayerStatus]:
    answer = subprocess.run(
        [sys.executable, "-c", SURVEY.replace("{wanted}", wanted)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    return {name: LayerStatus(name, *rest) for name, *rest in json.loads(answer.stdout)}


def test_every_layer_is_seen_to_hold():
    with Pool() as pool:
        statuses = pool.layers
    assert [status.name for status in statuses] == ["descriptors", "session", "limits", "ids", "privileges"]
    missing = {status.name: status.evidence for status in statuses if not status.active}
    if os.geteuid() != 0:
        assert "not root" in missing.pop("ids")
    assert not missing


def test_a_layer_that_does_nothing_is_seen_through():
    """Without the change of user, root's process limit does not hold: the probe must notice."""
    found = survey("tuple(layer for layer in layers.LAYERS if layer.name != 'ids')")
    assert found["privileges"].active
    if os.geteuid() == 0:
        assert not found["limits"].active and "a fork was not refused" in found["limits"].evidence
    else:  # only root is exempt from the process limit
        assert found["limits"].active


def test_a_layer_that_cannot_be_applied_or_does_not_hold_is_named():
    found = survey(
        "(*layers.LAYERS, layers.Layer('a', refuse, through), layers.Layer('b', lambda _: None, through),"
        " layers.Layer('c', lambda _: None, broken))"
    )
    assert found["privileges"].active
    assert found["a"] == LayerStatus("a", False, "no such thing here")
    assert found["b"] == LayerStatus("b", False, "it got through")
    assert found["c"] == LayerStatus("c", False, "probe failed: KeyError: 'x'")
    line = layers.describe([found["privileges"], found["a"]])
    assert line == "privileges, no a (no such thing here)"


def test_own_id_follows_the_user_namespace(tmp_path):
    def chosen(*lines):
        path = tmp_path / "map"
        path.write_text("".join(f"{line}\n" for line in lines))
        return layers._own_id(str(path))

    assert chosen("0 0 4294967295") == 0x70000000 + os.getpid()
    assert 32767 <= chosen("0 100000 65536") < 65534  # rootless container
    assert 32767 <= chosen("0 1000 1", "1 100000 65536") < 65534
    with pytest.raises(OSError, match="maps only 1 ids"):
        chosen("0 1000 1")


@pytest.mark.parametrize(
    "field, value", [("memory_mb", 0), ("call_seconds", 0.0), ("processes", -1), ("open_files", 4)]
)
def test_limits_refuse_nonsense(field, value):
    with pytest.raises(ValueError, match=f"sandbox limit {field}={value} is too small"):
        Limits(**{field: value})
