"""Values between processes: exact, and only what is expected."""

from __future__ import annotations

import dataclasses
import math
import threading
import time

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.runtime import hosts


def episode() -> structs.Episode:
    logp = np.array([-0.1, -1.0 / 3.0, -np.inf], np.float32)
    turn = structs.Turn(
        observation="a \ud800 lone surrogate",
        prompt_tokens=np.arange(5, dtype=np.int32),
        response_tokens=np.array([7, 8, 9], np.int32),
        behaviour_logp=logp,
        versions=np.zeros(3, np.int32),
        response="x",
        action="y",
        reward=0.1 + 0.2,
    )
    nothing = dataclasses.replace(turn, response_tokens=np.zeros(0, np.int32), behaviour_logp=np.zeros(0, np.float32))
    return structs.Episode("id", structs.AGENT, structs.PLAIN, 3, 2**60 + 1, (turn, nothing), 1.0, structs.SUCCESS)


def test_episodes_arrive_as_they_left():
    sent = episode()
    (received,) = hosts.decode(hosts.encode([sent]), structs.Episode, structs.Turn)
    assert isinstance(received.turns, tuple)
    for field in dataclasses.fields(structs.Episode):
        if field.name != "turns":
            assert getattr(received, field.name) == getattr(sent, field.name)
    for a, b in zip(received.turns, sent.turns, strict=True):
        for field in dataclasses.fields(structs.Turn):
            x, y = getattr(a, field.name), getattr(b, field.name)
            if isinstance(y, np.ndarray):
                assert x.dtype == y.dtype and x.flags.writeable
            np.testing.assert_array_equal(x, y)


def test_json_values_and_tuples_keep_their_kinds():
    value = {"a": [1, 2.5, None, True], "b": (1, (2, "x")), "": {}, 3: [], "nan": [math.inf]}
    assert hosts.decode(hosts.encode(value)) == value
    (number,) = hosts.decode(hosts.encode([math.nan]))
    assert math.isnan(number)


def test_arrays_of_any_shape():
    for array in (np.zeros((2, 0, 3)), np.array(4, np.int8), np.arange(6).reshape(2, 3).T):
        back = hosts.decode(hosts.encode(array))
        assert back.dtype == array.dtype
        np.testing.assert_array_equal(back, array)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(TypeError, match="set cannot be sent"):
        hosts.encode([{1, 2}])


def test_only_the_structs_that_are_expected_are_made():
    with pytest.raises(KeyError):
        hosts.decode(hosts.encode(episode()), structs.Episode)


def test_a_process_by_itself_does_all_the_work():
    assert hosts.is_first()
    assert hosts.spread([1, 2, 3], lambda share: [2 * item for item in share]) == [2, 4, 6]
    assert hosts.gather("x") == ["x"] and hosts.from_first(lambda: 5) == 5


class Dealt(Exception):
    """Carries what one process would send to the others."""


@pytest.mark.parametrize("processes", [2, 3, 4])
@pytest.mark.parametrize("together", [None, lambda item: (item[0], item[2])], ids=["each", "pairs"])
def test_work_is_dealt_evenly_and_what_belongs_together_to_one_process(monkeypatch, processes, together):
    items = [(name, arm, seed) for name in "abcde" for arm in ("plain", "hinted") for seed in range(3)]
    monkeypatch.setattr(hosts.jax, "process_count", lambda: processes)

    def send(share):
        raise Dealt(share)

    monkeypatch.setattr(hosts, "gather", send)
    shares = []
    for process in range(processes):
        monkeypatch.setattr(hosts.jax, "process_index", lambda process=process: process)
        with pytest.raises(Dealt) as dealt:
            hosts.spread(items, list, together=together)
        shares.append(dealt.value.args[0])
    assert sorted(item for share in shares for item in share) == sorted(items)
    assert max(map(len, shares)) - min(map(len, shares)) <= (2 if together else 1)
    owners = {item: process for process, share in enumerate(shares) for item in share}
    split = [owners[name, "plain", seed] != owners[name, "hinted", seed] for name in "abcde" for seed in range(3)]
    assert any(split) == (together is None and processes != 3)
    monkeypatch.setattr(hosts, "gather", lambda _: shares)
    assert hosts.spread(items, list, together=together) == items


def test_every_exchange_waits_for_what_is_to_come_before_it(monkeypatch):
    told = []
    monkeypatch.setattr(hosts.jax, "process_count", lambda: 2)
    utils = hosts.multihost_utils
    monkeypatch.setattr(utils, "process_allgather", lambda x: told.append("exchanged") or np.stack([x, x]))
    monkeypatch.setattr(utils, "broadcast_one_to_all", lambda x: told.append("exchanged") or x)
    with hosts.after(lambda: told.append("waited")):
        assert hosts.spread([1, 2, 3], lambda mine: [told.append("worked") or i for i in mine]) == [1, 1, 3]
        assert hosts.from_first(lambda: told.append("worked") or 7) == 7
        exchanges = ["exchanged"] * 2  # of a size, and of what is that long
        assert told == ["worked", "worked", "waited", *exchanges, "waited", "worked", *exchanges]
        told.clear()
    assert hosts.gather(5) == [5, 5] and told == ["exchanged", "exchanged"]


def test_a_deadline_passes_in_its_time_and_none_never_does():
    with hosts.deadline("none", 0) as over:
        assert not over()
    with hosts.deadline("short", 0.05) as over:
        assert not over()
        time.sleep(0.3)
        assert over()
    began = time.monotonic()
    with hosts.deadline("long", 600) as over:  # whose thread does not keep anybody
        assert not over()
    assert time.monotonic() - began < 5


def test_who_leaves_a_deadline_does_not_wait_for_a_first_process_that_died(monkeypatch):
    """Or it would come too late to say so, before JAX ends it with a stack trace."""
    asked, answered = threading.Event(), threading.Event()

    class Store:
        def key_value_dir_get(self, key):
            asked.set()
            answered.wait(20)

    monkeypatch.setattr(hosts, "is_first", lambda: False)
    monkeypatch.setattr(hosts.distributed.global_state, "client", Store())
    try:
        with pytest.raises(RuntimeError, match="Gloo"), hosts.deadline("lost", 600):
            assert asked.wait(10)
            began = time.monotonic()
            raise RuntimeError("Gloo AllGather failed")
        assert time.monotonic() - began < 10
    finally:
        answered.set()
