"""The isolation layers as this machine has them."""

from __future__ import annotations

import json
import logging
import os
import pathlib
import subprocess
import sys

import pytest
import sandbox_checks

from spade_jax.sandbox import Limits, Pool, SandboxError, layers, memory
from spade_jax.sandbox.layers import LayerStatus, ids

ROOT = pathlib.Path(__file__).parents[2]

# A survey forks, which this process must not where another test has started JAX.
SURVEY = """
import dataclasses, json, os
from spade_jax.sandbox import Limits, layers
from spade_jax.sandbox.layers import ids, namespaces
def refuse(context):
    raise OSError(1, "no such thing here")
def through(context):
    return "it got through"
def broken(context):
    raise KeyError("x")
layers.default_signals()
free = ids.free_ids("/proc/self/uid_map")
null = os.open("/dev/null", os.O_RDWR)
context = layers.Context(
    Limits(), layers.address_space_bytes(), 4096, null, free, free, os.getpid(), "not entered"
)
named = {layer.name: layer for layer in layers.LAYERS}
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


def without(*names: str) -> str:
    return f"[layer for layer in layers.LAYERS if layer.name not in {names!r}]"


def test_every_layer_is_seen_to_hold():
    with Pool() as pool:
        statuses = pool.layers
    assert tuple(status.name for status in statuses) == layers.NAMES
    missing = {status.name: status.evidence for status in statuses if not status.active}
    if os.geteuid() != 0:
        assert "not root" in missing.pop("ids")
    assert not missing


@pytest.mark.parametrize("name", layers.NAMES)
def test_every_probe_sees_a_layer_that_does_nothing(name):
    """The layer's `apply` replaced by nothing, and without those that would hide it by forbidding the same."""
    if name == "ids" and os.geteuid() != 0:
        return  # it cannot be applied at all, which is told before any probe
    nothing = "lambda context: os.dup2(context.channel, 3)" if name == "descriptors" else "lambda context: None"
    hiding = {"accounting": ("seccomp",), "limits": ("ids", "privileges", "seccomp"), "namespaces": layers.NAMES[3:]}
    if name == "limits" and os.geteuid() != 0:
        hiding["limits"] = ("seccomp",)
    rest = without("namespaces" if name != "namespaces" else "", *hiding.get(name, ()))
    status = survey(f"[dataclasses.replace(x, apply={nothing}) if x.name == {name!r} else x for x in {rest}]")[name]
    assert not status.active and status.applied, status


def test_the_process_limit_needs_roots_exemption_dropped():
    """Without the change of user, root's process limit does not hold: the probe must notice."""
    found = survey(without("ids", "privileges", "seccomp"))
    if os.geteuid() == 0:
        assert not found["limits"].active and "a fork was not refused" in found["limits"].evidence
    else:  # only root is exempt from the process limit
        assert found["limits"].active


def test_a_layer_that_cannot_be_applied_or_does_not_hold_is_named():
    found = survey(
        "(*layers.LAYERS, layers.Layer('a', refuse, through, ''), layers.Layer('b', lambda _: None, through, ''),"
        " layers.Layer('c', lambda _: None, broken, ''))"
    )
    assert found["privileges"].active and found["seccomp"].active
    assert found["namespaces"] == LayerStatus("namespaces", False, "not entered", False)
    assert found["a"] == LayerStatus("a", False, "no such thing here", False)
    assert found["b"] == LayerStatus("b", False, "it got through", True)
    assert found["c"] == LayerStatus("c", False, "probe failed: KeyError: 'x'", True)
    line = layers.describe([found["privileges"], found["a"]])
    assert line == "privileges, no a (no such thing here)"


@pytest.mark.parametrize("isolation", ["strict", "best_effort", "none"])
def test_what_each_isolation_does_without_a_required_layer(isolation, caplog):
    """seccomp is left out by hand, which also leaves memory uncounted where files can be written."""
    caplog.set_level(logging.INFO, "spade_jax.sandbox.pool")
    wanted = [name for name in layers.ISOLATION[isolation] if name != "seccomp"]
    if isolation == "strict":
        with pytest.raises(SandboxError) as refusal:
            Pool(isolation=isolation, required=("accounting",), wanted=wanted)
        said = str(refusal.value)
        assert said.startswith(
            "sandbox.isolation=strict cannot start: the layer accounting does not hold here (memory in "
        )
        assert "would not be counted): it needs the layer seccomp" in said and "\n" not in said
        return
    with Pool(isolation=isolation, required=("accounting",), wanted=wanted) as pool:
        sandbox_checks.play_counter(pool, pool.open(sandbox_checks.COUNTER, "Counter"))
    warnings = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == (isolation == "best_effort")  # once, although there are two fork servers
    assert any(f"sandbox layers ({isolation}): descriptors, session" in record.message for record in caplog.records)


def test_strict_names_a_required_layer_that_was_never_tried():
    with pytest.raises(SandboxError, match="the layer landlock does not hold here"):
        Pool(required=("landlock",), wanted=("descriptors", "session", "limits"))


def test_free_ids_follow_the_user_namespace(tmp_path):
    def chosen(*lines):
        path = tmp_path / "map"
        path.write_text("".join(f"{line}\n" for line in lines))
        free = ids.free_ids(str(path))
        return ids.own_id(free) if free else None

    assert chosen("0 0 4294967295") == 0x70000000 + os.getpid()
    assert 32767 <= chosen("0 100000 65536") < 65534  # rootless container
    assert 32767 <= chosen("0 1000 1", "1 100000 65536") < 65534
    assert chosen("0 1000 1") is None


def test_a_pidfd_tells_the_pid_that_the_trainer_sees():
    with Pool(wanted=layers.NAMES) as pool:
        env = pool.open(sandbox_checks.COUNTER, "Counter")
        sandbox_checks.play_counter(pool, env)
        (process,) = pool._processes.values()
        servers = sandbox_checks.server_pids(pool)  # which of them it is of hangs on which was ready first
        assert [pid for server in servers for pid, _ in sandbox_checks.children(server)] == [process.pid]
        assert memory.host_pid(process.pidfd) == process.pid and not memory.ended(process.pidfd)
        process.kill()
        assert sandbox_checks.eventually(lambda: not os.path.exists(f"/proc/{process.pid}"))  # reaped, too
        assert memory.ended(process.pidfd)
        with pytest.raises(ProcessLookupError):
            memory.host_pid(process.pidfd)


def test_the_fewest_and_biggest_are_beyond_the_budget():
    held = {1: 50, 2: 300, 3: 200, 4: 50}
    assert memory.beyond(held, 600) == []
    assert memory.beyond(held, 599) == [2]
    assert memory.beyond(held, 299) == [2, 3]
    assert memory.beyond({}, 0) == []


@pytest.mark.parametrize(
    "field, value", [("memory_mb", 0), ("call_seconds", 0.0), ("processes", -1), ("open_files", 4)]
)
def test_limits_refuse_nonsense(field, value):
    with pytest.raises(ValueError, match=f"sandbox limit {field}={value} is too small"):
        Limits(**{field: value})
