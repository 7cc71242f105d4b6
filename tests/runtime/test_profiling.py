from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from spade_jax.runtime.profiling import Profiler, parse_steps


def test_steps():
    assert parse_steps("") == range(0)
    assert list(parse_steps("3:5")) == [3, 4]


@pytest.mark.parametrize("text", ["3", "3:", ":3", "5:3", "3:3", "-1:2", "1:2:3", "a:b", " "])
def test_other_texts_are_refused(text):
    with pytest.raises(ValueError, match="give first:last"):
        parse_steps(text)


def steps_traced(directory) -> set[int]:
    found = set()
    for path in directory.glob("plugins/profile/*/*.xplane.pb"):
        for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
            for line in plane.lines:
                for event in line.events:
                    if event.name == "step":
                        found.add(dict(event.stats)["step_num"])
    return found


def run(directory, steps: str, first: int, last: int) -> None:
    with Profiler(steps, directory) as profiler:
        for step in range(first, last):
            profiler.step(step)
            jnp.ones(4).sum().block_until_ready()


def test_the_steps_named_are_traced_and_no_others(tmp_path):
    run(tmp_path, "1:3", 0, 5)
    assert steps_traced(tmp_path) == {1, 2}


def test_nothing_is_traced_by_default(tmp_path):
    run(tmp_path, "", 0, 2)
    assert not list(tmp_path.iterdir())


def test_a_run_that_begins_or_ends_within_them(tmp_path):
    run(tmp_path, "1:9", 4, 6)
    assert steps_traced(tmp_path) == {4, 5}
