"""The command that shows a machine's layers."""

from __future__ import annotations

import json
import os

import pytest

from spade_jax import sandbox_probe
from spade_jax.sandbox import layers


def test_what_it_prints_here(capsys):
    assert sandbox_probe.main([]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in said if line[0] != " "] == [*layers.NAMES, "sandbox.isolation=strict"]
    assert said[-1] == "sandbox.isolation=strict would start here"
    assert ("MISSING" in "".join(said)) == (os.geteuid() != 0)  # only root has the layer ids


@pytest.mark.parametrize("lacking, code", [("seccomp", 1), ("landlock", 0)])
def test_a_missing_layer_comes_with_what_was_seen_and_what_gives_it(lacking, code, capsys, monkeypatch):
    rest = tuple(name for name in layers.NAMES if name != lacking)
    statuses = [layers.LayerStatus(name, True) for name in rest] + [layers.LayerStatus(lacking, False, "no such call")]

    class Machine:
        layers = statuses

        def __init__(self, **_):
            pass

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr(sandbox_probe, "Pool", Machine)
    assert sandbox_probe.main(["--json"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["strict"] == (code == 0)
    (missing,) = [entry for entry in found["layers"] if not entry["active"]]
    assert (missing["name"], missing["evidence"], missing["required"]) == (lacking, "no such call", code == 1)
    assert "it needs Linux" in missing["advice"]
    assert sandbox_probe.main([]) == code
    assert f"strict would {'not ' if code else ''}start here" in capsys.readouterr().out
