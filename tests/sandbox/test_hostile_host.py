"""Every program of tests/hostile/host does its worst, and costs nobody but itself.

Adding an attack is adding a file there: a class Hostile that attacks from the
module body, __init__, reset or step. Its header says what may come of it:

    # expect: KIND[, KIND]   the first reply that is not "ok", or "ok"
    # needs: LAYER           the attack succeeds without this layer: it must be missing for a known reason

A program that survives its own attack must report, in step's info, how often it
tried (at least once: an attack that never ran has shown nothing) and how often
it got through (never).
"""

from __future__ import annotations

import os
import pathlib
import re

import pytest
import sandbox_checks

from spade_jax.sandbox import Limits, Pool

PROGRAMS = sorted((pathlib.Path(__file__).parents[1] / "hostile" / "host").glob("*.py"))
FINAL = {"timeout", "died", "protocol"}
LIMITS = Limits(memory_mb=64, call_seconds=1.0, reset_seconds=2.0, cpu_seconds=10)


def header(source: str, key: str) -> list[str]:
    found = re.search(rf"^# {key}: (.+)$", source, re.MULTILINE)
    return [word.strip() for word in found[1].split(",")] if found else []


@pytest.fixture(scope="module")
def pool():
    with Pool(LIMITS, max_live=8) as pool:
        yield pool


@pytest.fixture(scope="module")
def sibling(pool):
    env = pool.open(sandbox_checks.COUNTER, "Counter")
    sandbox_checks.play_counter(pool, env)
    return env


def test_there_are_programs():
    assert len(PROGRAMS) >= 50


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_contained(path, pool, sibling):
    source = path.read_text()
    expected = header(source, "expect")
    active = {status.name for status in pool.layers if status.active}
    if missing := set(header(source, "needs")) - active:
        evidence = {status.name: status.evidence for status in pool.layers}
        assert missing == {"ids"} and os.geteuid() != 0 and "not root" in evidence["ids"]
        return
    sandbox_checks.settle(pool)
    servers = sandbox_checks.server_pids(pool)
    descriptors = [sandbox_checks.descriptors(pid) for pid in ["self", *servers]]

    env = pool.open(source, "Hostile")
    replies = []
    for method, args in (("construct", ()), ("reset", (0,)), ("step", ("go",)), ("step", ("go",))):
        replies.append(pool.call(env, method, *args))
        if not replies[-1].ok:
            break
    last = replies[-1]
    assert last.kind in expected, last
    assert len(last.error) <= 300 and (last.error.isprintable() if not last.ok else last.error == "")
    if last.ok:
        info = last.value[4]
        assert info["attempts"] >= 1 and info["escaped"] == 0, info
    if last.kind in FINAL:  # it answers at once from now on, and with the same reason
        again = pool.call(env, "step", "go")
        assert (again.kind, again.error) == (last.kind, last.error)

    # Nobody else has noticed.
    assert pool.call(sibling, "step", "still").ok
    assert pool.call(sibling, "reset", 5).value[0] == "seed 5 draw 637"
    fresh = pool.open(sandbox_checks.COUNTER, "Counter")
    sandbox_checks.play_counter(pool, fresh)

    # Nothing is left behind.
    pool.close(fresh)
    pool.close(env)
    sandbox_checks.settle(pool)
    assert sandbox_checks.server_pids(pool) == servers
    assert [sandbox_checks.descriptors(pid) for pid in ["self", *servers]] == descriptors
    left = [child for pid in servers for child in sandbox_checks.children(pid)]
    assert len(left) == 1, f"beside the sibling: {left}"
