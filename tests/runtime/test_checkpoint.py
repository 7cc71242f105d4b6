from __future__ import annotations

import gc
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from spade_jax.runtime import distributed
from spade_jax.runtime.app import disk_full
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.errors import RunError, UsageError


class State(NamedTuple):
    params: dict
    opt_state: optax.OptState
    step: jax.Array
    key: jax.Array


def _state(step: int, width: int = 8) -> State:
    def init():
        w = jnp.arange(width, dtype=jnp.float32) * step
        params = {"w": w, "layer": {"b": jnp.full((2, 3), step, jnp.bfloat16)}}
        return State(params, optax.adamw(1e-3).init(params), jnp.int32(step), jax.random.key(step))

    return jax.jit(init)()


def _assert_same(a, b):
    as_array = lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x  # noqa: E731
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(as_array(x), as_array(y)), a, b)
    assert jax.tree.structure(a) == jax.tree.structure(b)


HOST = {"memory": ["e1"], "cursor": 3, "nested": {"x": [1.5, None, "é"]}}


def test_round_trip_of_state_and_host(tmp_path):
    with Checkpointer(tmp_path / "c", keep=2) as checkpointer:
        assert checkpointer.latest_step() is None
        assert checkpointer.restore(_state(0)) is None
        for step in (1, 2, 3):
            checkpointer.save(step, _state(step), HOST | {"step": step})
    with Checkpointer(tmp_path / "c", keep=2) as checkpointer:
        restored = checkpointer.restore(jax.eval_shape(lambda: _state(0)))
        assert restored.step == 3
        assert restored.host == HOST | {"step": 3}
        _assert_same(restored.state, _state(3))
    assert sorted(p.name for p in (tmp_path / "c").iterdir() if p.is_dir()) == ["2", "3"]


def test_state_may_be_donated_while_the_save_is_under_way(tmp_path):
    step_fn = jax.jit(lambda s: jax.tree.map(lambda x: x * 0, s), donate_argnums=0)
    params = {"w": jnp.arange(1 << 18, dtype=jnp.float32)}
    expected = np.asarray(params["w"])
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(1, params, {})
        params = step_fn(params)
        checkpointer.wait()
        restored = checkpointer.restore(params)
    np.testing.assert_array_equal(restored.state["w"], expected)


def test_another_model_is_a_usage_error(tmp_path):
    with Checkpointer(tmp_path, keep=1) as checkpointer:
        checkpointer.save(5, _state(1), {})
        checkpointer.wait()
        with pytest.raises(UsageError, match=r"5 holds another model \(.*w: saved \(8,\), expected \(16,\)\)"):
            checkpointer.restore(jax.eval_shape(lambda: _state(1, width=16)))


def _damage(checkpoint, how):
    if how == "host":
        shutil.rmtree(checkpoint / "host")
    for path in (checkpoint / "state").rglob("*"):
        if path.is_file() and how == "emptied":
            path.write_bytes(b"")
        elif path.is_file() and how == "cut" and path.stat().st_size > 1000:
            os.truncate(path, 500)


@pytest.mark.parametrize("how", ["host", "emptied", "cut"])
def test_damaged_checkpoint_gives_way_to_the_one_before(tmp_path, how, capfd):
    """In state and host state alike; its step can be saved anew, and what was there is kept beside."""
    directory = tmp_path / "c"
    with Checkpointer(directory, keep=3) as checkpointer:
        for step in (2, 4, 8):
            checkpointer.save(step, _state(step, width=4096), HOST | {"step": step})
    _damage(directory / "8", how)
    abstract = jax.eval_shape(lambda: _state(0, width=4096))
    message = r"checkpoint .*8 cannot be read \(.*\); remove that folder to read step 4"
    with Checkpointer(directory, keep=3, read_only=True) as looking, pytest.raises(RunError, match=message):
        looking.restore(abstract)
    capfd.readouterr()
    with Checkpointer(directory, keep=3) as checkpointer:
        restored = checkpointer.restore(abstract)
        assert (restored.step, restored.host) == (4, HOST | {"step": 4})
        _assert_same(restored.state, _state(4, width=4096))
        gc.collect()
        (line,) = capfd.readouterr().err.splitlines()
        assert re.fullmatch(
            rf"warning: checkpoint {directory}/8 cannot be read \(.*\) and was moved to {directory}.damaged/8; the run "
            "goes on from step 4",
            line,
        )
        for step in (6, 8):
            checkpointer.save(step, _state(step, width=4096), HOST | {"step": step})
    with Checkpointer(directory, keep=3) as checkpointer:
        assert checkpointer.restore(abstract).host["step"] == 8
    _damage(directory / "8", how)  # a second time
    with Checkpointer(directory, keep=3) as checkpointer:
        assert checkpointer.restore(abstract).step == 6
    assert sorted(path.name for path in (tmp_path / "c.damaged").iterdir()) == ["8", "8.1"]


def test_nothing_but_damaged_checkpoints(tmp_path, capfd):
    with Checkpointer(tmp_path / "c", keep=2) as checkpointer:
        for step in (4, 8):
            checkpointer.save(step, _state(step), HOST)
    for step in (4, 8):
        _damage(tmp_path / "c" / str(step), "emptied")
    message = r"checkpoint .*8 cannot be read \(.*\); nor can those of steps 4; start again in a new workdir"
    with Checkpointer(tmp_path / "c", keep=2) as checkpointer, pytest.raises(RunError, match=message):
        checkpointer.restore(_state(0))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["c"]  # nothing was moved: nothing is gained by it
    assert capfd.readouterr().err == ""


_SAVE_FOREVER = """
import sys, jax, jax.numpy as jnp
from spade_jax.runtime.checkpoint import Checkpointer
make = jax.jit(lambda s: {"w": jnp.full((1 << 22,), s, jnp.float32), "step": jnp.int32(s)})
checkpointer = Checkpointer(sys.argv[1], keep=2)
step = 0
while True:
    step += 1
    checkpointer.save(step, make(step), {"step": step, "pad": "x" * 100000})
    if step == 2:
        print("saving", flush=True)
"""


def _kill_during_save(directory, delay: float) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", _SAVE_FOREVER, str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    try:
        assert child.stdout.readline() == "saving\n"
        time.sleep(delay)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()


def _assert_last_is_whole(directory) -> None:
    abstract = {"w": jax.ShapeDtypeStruct((1 << 22,), jnp.float32), "step": jax.ShapeDtypeStruct((), jnp.int32)}
    with Checkpointer(directory, keep=2) as checkpointer:
        restored = checkpointer.restore(abstract)
        assert restored.step >= 1
        assert restored.host["step"] == restored.step == int(restored.state["step"])
        assert np.unique(restored.state["w"]).tolist() == [restored.step]
        checkpointer.save(restored.step + 1, restored.state, {"step": restored.step + 1})  # and the run goes on
    assert not [p for p in directory.iterdir() if "tmp" in p.name], "half-written folders are removed"


def test_kill_during_save_leaves_the_previous_checkpoint(tmp_path):
    _kill_during_save(tmp_path, 0.02)
    _assert_last_is_whole(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.005, 0.05, 0.1, 0.15, 0.21])
def test_kill_at_many_moments(tmp_path, delay):
    _kill_during_save(tmp_path, delay)
    _assert_last_is_whole(tmp_path)


def _assert_full_disk_is_one_sentence(directory, fill) -> None:
    def noise(seed):
        return jax.random.normal(jax.random.key(seed), (1 << 16,))

    make = jax.jit(lambda s: {"w": noise(s), "others": [noise(s + i) for i in range(1, 12)], "step": jnp.int32(s)})
    checkpointer = Checkpointer(directory, keep=3)
    checkpointer.save(1, make(1), {"step": 1})
    checkpointer.wait()
    with fill(), pytest.raises(RunError, match="disk is full.*checkpoint of step 1 is intact; free some") as caught:
        checkpointer.save(2, make(2), {"step": 2})
        time.sleep(1.0)  # a run goes on to train: what TensorStore's threads meet meanwhile is not to be heard either
        checkpointer.wait()
    assert "\n" not in str(caught.value)
    with Checkpointer(directory, keep=3) as again:
        restored = again.restore(make(0))
        assert restored.step == 1
        np.testing.assert_array_equal(restored.state["w"], make(1)["w"])


def test_full_disk_by_file_size_limit(tmp_path):
    """Runs in a child, since the limit holds for the whole process."""
    code = (
        "import contextlib, pathlib, resource, signal, sys\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from tests.runtime.test_checkpoint import _assert_full_disk_is_one_sentence as check\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "@contextlib.contextmanager\n"
        "def fill():\n"
        "    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))\n"
        "    try: yield\n"
        "    finally: resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))\n"
        "check(pathlib.Path(sys.argv[1]), fill); print('ok')\n"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    result = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), root],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
    )
    assert result.stdout == "ok\n", result.stderr[-3000:]
    assert result.stderr == ""  # Orbax's threads would log a traceback each


def test_full_disk_on_a_small_file_system(tmp_path):
    import contextlib

    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(tmp_path)], capture_output=True)
    if mounted.returncode:  # no right to mount: the kernel's own full device at least is told apart
        with pytest.raises(OSError) as caught, open("/dev/full", "wb", buffering=0) as full:
            full.write(b"x")
        assert disk_full(caught.value)
        return
    try:

        @contextlib.contextmanager
        def fill():
            # Without a buffer, which would be written once more on closing where a write was cut short.
            with open(tmp_path / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * 65536)
            yield
            (tmp_path / "ballast").unlink()

        _assert_full_disk_is_one_sentence(tmp_path / "c", fill)
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_checkpoints_that_are_a_file(tmp_path):
    (tmp_path / "checkpoints").touch()
    with pytest.raises(UsageError, match="checkpoints is not a folder"):
        Checkpointer(tmp_path / "checkpoints", keep=1)


def test_keep_period_keeps_some_for_good(tmp_path):
    with Checkpointer(tmp_path / "c", keep=2, keep_period=4) as checkpointer:
        for step in range(1, 11):
            checkpointer.save(step, {"w": jnp.float32(step)}, {})
    assert sorted(int(p.name) for p in (tmp_path / "c").iterdir() if p.is_dir()) == [4, 8, 9, 10]


_OTHER_DEVICES = """
import sys
import jax
import numpy as np
from spade_jax.learner import partitioning, state
from spade_jax.policy import Decoder, DecoderConfig
from spade_jax.runtime.checkpoint import Checkpointer

what, directory, data, fsdp, tensor = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
mesh = partitioning.make_mesh(data=data, fsdp=fsdp, tensor=tensor)
shape = dict(vocab_size=32, embed_dim=16, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=4, mlp_dim=32)
model = Decoder(DecoderConfig(**shape))
optimizer = state.make_optimizer(state.OptimizerConfig(learning_rate=1e-2), model)
# Another seed where it is read, so that nothing equal is left by accident.
train = state.init_state(model, optimizer, mesh, seed=3 if what == "save" else 4, num_baselines=3)
with Checkpointer(directory, keep=2) as checkpointer:
    if what == "save":
        checkpointer.save(7, train, {"devices": jax.device_count()})
    else:
        restored = checkpointer.restore(train)
        assert (restored.step, restored.host["devices"]) == (7, 8 if jax.device_count() == 1 else 1)
        for new, old in zip(jax.tree.leaves(restored.state), jax.tree.leaves(train), strict=True):
            assert new.sharding == old.sharding
        train = restored.state
is_key = lambda x: jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
numbers = [jax.random.key_data(x) if is_key(x) else x for x in jax.tree.leaves(train)]
np.savez(f"{directory}-{what}.npz", *[np.asarray(x) for x in numbers])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("saved", "restored"), [("1,1,1", "2,2,2"), ("1,4,2", "1,1,1")])
def test_restored_on_another_number_of_devices(tmp_path, saved, restored):
    """1 to 8 and 8 to 1, with everything placed as the new mesh has it."""
    for what, mesh in (("save", saved), ("restore", restored)):
        sizes = mesh.split(",")
        subprocess.run(
            [sys.executable, "-c", _OTHER_DEVICES, what, str(tmp_path / "c"), *sizes],
            env=os.environ
            | {
                "JAX_PLATFORMS": "cpu",
                "JAX_NUM_CPU_DEVICES": str(math.prod(map(int, sizes))),
                "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiling is most of what it does
            },
            check=True,
            timeout=600,
        )
    before, after = (np.load(tmp_path / f"c-{what}.npz") for what in ("save", "restore"))
    assert before.files == after.files and len(before.files) > 20
    for name in before.files:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.parametrize("within", ["save", "wait_until_finished"])  # this one, or the one before
def test_a_save_that_misses_a_process_that_died_does_not_blame_the_folder(tmp_path, monkeypatch, within):
    lost = RuntimeError("UNKNOWN: Gloo AllGather failed: Connection reset by peer")

    def fail(*args, **kwargs):
        raise lost

    checkpointer = Checkpointer(tmp_path / "c", keep=2)
    with monkeypatch.context() as patch:
        patch.setattr(checkpointer._manager, within, fail)
        with pytest.raises(RunError, match="no checkpoint could be written"):
            checkpointer.save(1, _state(1), HOST)  # a process by itself has nobody to miss
        patch.setattr(distributed, "joined", lambda: True)
        with pytest.raises(RuntimeError) as caught:
            checkpointer.save(1, _state(1), HOST)
        assert caught.value is lost
    checkpointer.close()
