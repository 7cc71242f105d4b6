from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2
from tensorboard.plugins.hparams import plugin_data_pb2

from spade_jax.runtime.metrics import (
    LAYOUT,
    TAGS,
    CompilationCounter,
    MetricWriter,
    Timers,
    code_block,
    describe,
    read_scalars,
)


def test_tags_are_those_of_the_design():
    concrete = {
        "designer/reject/parse": "fail", "perf/seconds/update": "wall time", "eval/kuhn/random/invalid": "invalid move",
        "eval/kuhn/exploitability": "best response", "eval/probe/number_search": "one task", "eval/elo": "Elo",
        "baseline/kuhn/0": "running baseline", "agent/win_rate": "plain",
    }  # fmt: skip
    for tag, words in concrete.items():
        assert words in describe(tag)
    assert all(tag in TAGS for _, tags in LAYOUT for tag in tags)
    for wrong in ("agent/winrate", "agent/win_rate/x", "designer/reject/", "x"):
        with pytest.raises(ValueError, match="not a row of TAGS"):
            describe(wrong)


def test_writer_refuses_unknown_tags(tmp_path):
    writer = MetricWriter(tmp_path)
    with pytest.raises(ValueError, match="agent/wins"):
        writer.scalars(0, {"agent/wins": 1.0})
    with pytest.raises(ValueError, match="agent/text"):
        writer.text(0, "agent/text", "x")
    writer.close()


def test_round_trip_through_tensorboard_itself(tmp_path):
    writer = MetricWriter(tmp_path / "metrics")
    writer.scalars(0, {"agent/win_rate": 0.25, "perf/seconds/update": 1.5})
    writer.scalars(1, {"agent/win_rate": 0.5})
    writer.text(1, "designer/program", code_block("print('```')", "python"))
    writer.hparams({"learner.lr": 1e-3, "run.name": "x", "gate.checks": ("a", "b")}, ("agent/win_rate",), "run")
    writer.close()

    events = EventAccumulator(str(tmp_path / "metrics"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("agent/win_rate")] == [(0, 0.25), (1, 0.5)]
    text = events.Tensors("designer/program")[0].tensor_proto.string_val[0].decode()
    assert text == "````python\nprint('```')\n````"
    layout = layout_pb2.Layout.FromString(events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0])
    assert [chart.title for chart in layout.category[0].chart] == [title for title, _ in LAYOUT]
    hparams = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    session = plugin_data_pb2.HParamsPluginData.FromString(hparams).session_start_info
    assert session.hparams["gate.checks"].string_value == "('a', 'b')"
    assert session.hparams["learner.lr"].number_value == 1e-3

    steps, values = read_scalars(tmp_path)["agent/win_rate"]
    np.testing.assert_array_equal(steps, [0, 1])
    np.testing.assert_array_equal(values, [0.25, 0.5])


def _log(directory: Path, start: int, stop: int, offset: float, **kwargs) -> None:
    writer = MetricWriter(directory, **kwargs)
    for step in range(start, stop):
        writer.scalars(step, {"agent/win_rate": step + offset} | ({"eval/elo": offset} if step % 4 == 0 else {}))
    writer.close()


def test_resume_purges_what_it_logs_again(tmp_path):
    _log(tmp_path / "metrics", 0, 9, 0.0)
    _log(tmp_path / "metrics", 6, 8, 0.5, start_step=6)
    series = read_scalars(tmp_path)
    np.testing.assert_array_equal(series["agent/win_rate"][0], range(8))
    np.testing.assert_array_equal(series["agent/win_rate"][1], [0, 1, 2, 3, 4, 5, 6.5, 7.5])
    np.testing.assert_array_equal(series["eval/elo"][0], [0, 4])  # step 8 is not reached again, yet gone
    events = EventAccumulator(str(tmp_path / "metrics"))
    events.Reload()
    assert [e.value for e in events.Scalars("agent/win_rate")] == [0, 1, 2, 3, 4, 5, 6.5, 7.5]
    assert [e.step for e in events.Scalars("eval/elo")] == [0, 4]


def test_killed_before_its_first_checkpoint_a_run_starts_its_curves_over(tmp_path):
    _log(tmp_path / "metrics", 0, 3, 0.0)
    _log(tmp_path / "metrics", 0, 1, 0.5)
    assert read_scalars(tmp_path)["agent/win_rate"][1].tolist() == [0.5]


def test_truncated_file_is_read_up_to_the_tear(tmp_path):
    _log(tmp_path / "metrics", 0, 5, 0.0)
    (path,) = (tmp_path / "metrics").iterdir()
    path.write_bytes(path.read_bytes()[:-7])
    assert read_scalars(tmp_path)["agent/win_rate"][0].tolist() == [0, 1, 2, 3]


def test_nothing_logged(tmp_path):
    assert read_scalars(tmp_path) == {}


def test_scalars_survive_a_kill_right_after_they_are_logged(tmp_path):
    code = (
        "import os, signal, sys; from spade_jax.runtime.metrics import MetricWriter\n"
        "w = MetricWriter(sys.argv[1]); w.scalars(3, {'agent/win_rate': 1.0}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "metrics")])
    assert read_scalars(tmp_path)["agent/win_rate"][0].tolist() == [3]


def test_full_disk_is_an_oserror_of_the_caller(tmp_path):
    code = (
        "import resource, signal, sys; from spade_jax.runtime.metrics import MetricWriter\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))\n"
        "try:\n"
        "    with MetricWriter(sys.argv[1]) as w:\n"
        "        for step in range(99): w.scalars(step, {'agent/win_rate': 1.0})\n"
        "except OSError as error: print(error.strerror)"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path / "metrics")], capture_output=True, text=True)
    assert (result.stdout, result.stderr) == ("File too large\n", "")
    assert len(read_scalars(tmp_path)["agent/win_rate"][0]) > 10


def test_neither_tensorflow_nor_jax_is_imported():
    code = "import sys, spade_jax.runtime.metrics; print('tensorflow' in sys.modules, 'jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False False\n"


def test_timers_add_up_and_reset():
    timers = Timers()
    for _ in range(2):
        with timers.phase("update"):
            pass
    assert timers.seconds("update") > 0 == timers.seconds("other")
    taken = timers.take()
    assert list(taken) == ["perf/seconds/update", "perf/step_seconds"]
    assert 0 < taken["perf/seconds/update"] <= taken["perf/step_seconds"]
    assert list(timers.take()) == ["perf/step_seconds"]


def test_a_phase_within_a_phase_counts_once():
    timers = Timers()
    with timers.phase("play"):
        time.sleep(0.02)
        with timers.phase("publish"):
            time.sleep(0.05)
    taken = timers.take()
    assert 0.02 <= taken["perf/seconds/play"] < 0.05 <= taken["perf/seconds/publish"]
    assert taken["perf/seconds/play"] + taken["perf/seconds/publish"] <= taken["perf/step_seconds"]


def test_compilations_are_counted():
    import jax
    import jax.numpy as jnp

    counter = CompilationCounter()
    f = jax.jit(lambda x: jnp.cos(x) * 3)
    f(jnp.ones(5)).block_until_ready()
    first = counter.count
    assert first >= 1
    f(jnp.ones(5)).block_until_ready()
    assert counter.count == first
    f(jnp.ones(6)).block_until_ready()
    assert counter.count > first
