"""Every program of tests/hostile/host does its worst, and costs nobody but itself.

Adding an attack is adding a file there: a class Hostile that attacks from the
module body, __init__, reset or step. Its header says what may come of it:

    # expect: KIND[, KIND]     the first reply that is not "ok", or "ok"
    # needs: LAYER[, LAYER]    it escapes where none of these layers holds; one is enough
    # unbounded: WHY           it is not to be run without the layer limits

Without `needs`, the process border, the deadlines and the distrust of replies
contain it whatever the layers. A program that survives its own attack must
report, in step's info, how often it tried (at least once: an attack that never
ran has shown nothing) and how often it got through (never). That an attack can
succeed at all, the ablation shows (tests/benchmarks/sandbox_layers.py).
"""

from __future__ import annotations

import pytest
import sandbox_checks

from spade_jax.sandbox import Pool, layers

ATTACKS = sandbox_checks.attacks()
FINAL = {"timeout", "died", "protocol"}


@pytest.fixture(scope="module")
def pool():
    with Pool(sandbox_checks.HOSTILE_LIMITS, max_live=8) as pool:
        yield pool


@pytest.fixture(scope="module")
def sibling(pool):
    env = pool.open(sandbox_checks.COUNTER, "Counter")
    sandbox_checks.play_counter(pool, env)
    return env


def test_there_are_programs_and_their_headers_name_layers():
    assert len(ATTACKS) >= 110
    for attack in ATTACKS:
        assert attack.expect and set(attack.needs) <= set(layers.NAMES), attack.name


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_contained(attack, pool, sibling):
    # `strict` has started, so what it requires holds: for every attack, that is enough.
    assert not attack.needs or set(attack.needs) & set(layers.REQUIRED)
    sandbox_checks.settle(pool)
    servers = sandbox_checks.server_pids(pool)
    descriptors = [sandbox_checks.descriptors(pid) for pid in ["self", *servers]]

    env, replies = sandbox_checks.run_attack(pool, attack)
    assert not sandbox_checks.escape(attack, replies), replies
    last = replies[-1]
    assert len(last.error) <= 300 and (last.error.isprintable() if not last.ok else last.error == "")
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
