import io
import math

from spade_jax.runtime.progress import SPADE, Cadence, Column, Progress


def test_a_line_names_what_a_person_follows():
    stream = io.StringIO()
    Progress(0, 10, SPADE, stream).line(
        2,
        {
            "designer/regret": 0.1234,
            "designer/regret_se": 0.05,
            "agent/win_rate": 0.5,
            "agent/win_rate_hinted": 0.75,
            "designer/valid_share": 1.0,
            "perf/sample_tokens_per_s": 1234.5,
            "perf/seconds/play": 3.2,
        },
    )
    line = stream.getvalue()
    for part in ("step 3/10", "+0.123±0.050", "win 0.50 (hinted 0.75)", "valid 1.00", "probe -", "play 3s", "left"):
        assert part in line


def test_what_was_not_measured_is_a_dash():
    stream = io.StringIO()
    Progress(0, 2, SPADE, stream).line(0, {"designer/regret": math.nan})
    assert "regret -±-" in stream.getvalue()


def test_a_method_chooses_its_columns():
    stream = io.StringIO()
    Progress(0, 2, (Column("draws {} of {}", (("a/b", ".1f"), ("c", ".0f"))),), stream).line(0, {"a/b": 0.25})
    assert "step 1/2  draws 0.2 of -  " in stream.getvalue() and "regret" not in stream.getvalue()


def test_phases_are_shown_on_terminals_only():
    stream = io.StringIO()
    with Progress(0, 2, SPADE, stream).phase("play", 0):
        pass
    assert stream.getvalue() == ""


def test_cadence_by_steps_and_by_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    cadence = Cadence(steps=4, secs=60.0)
    assert [step for step in range(1, 9) if cadence.due(step)] == [4, 8]
    now[0] = 61.0
    assert cadence.due(9)
    assert not cadence.due(10)
    never = Cadence(steps=0, secs=0.0)
    assert not any(never.due(step) for step in range(1, 20))
