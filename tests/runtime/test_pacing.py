"""Updates behind the rollouts: who waits for whom, and what is closed when. The state is a list of what made it."""

from __future__ import annotations

import threading
import time

import pytest

from spade_jax.runtime.pacing import Pacer

TIMEOUT = 20.0


class Update:
    """One that ends when it is let go."""

    def __init__(self, name, error=None):
        self.name, self.error = name, error
        self.begun, self.release = threading.Event(), threading.Event()

    def __call__(self, state):
        self.begun.set()
        assert self.release.wait(TIMEOUT)
        if self.error:
            raise self.error
        return [*state, self.name], f"result {self.name}"


def ended(name):
    update = Update(name)
    update.release.set()
    return update


def pacer(ahead, version=0, **kwargs):
    """A pacer, and what it closes."""
    closed = []

    def close(state, version, result, report):
        closed.append((*state, version, report))

    return Pacer([], version, ahead, close, **kwargs), closed


def later(update, seconds=0.05):
    """Lets an update go in a while."""
    threading.Timer(seconds, update.release.set).start()


def until(condition):
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_with_nothing_ahead_every_update_is_waited_for():
    with pacer(0, version=7)[0] as p:
        slow = Update("a")
        later(slow)
        p.update(slow)
        assert slow.release.is_set() and p.state == ["a"]


def test_with_nothing_ahead_a_step_is_closed_when_it_is_reported():
    p, closed = pacer(0, version=7)
    with p:
        p.update(ended("a"))
        assert closed == []
        p.report("step a")
        assert closed == [("a", 8, "step a")]
        p.update(ended("b"))
        p.report("step b")
        assert closed[1:] == [("a", "b", 9, "step b")]


def test_an_update_goes_on_while_the_loop_does_and_is_closed_when_it_is_polled():
    p, closed = pacer(1)
    with p:
        slow = Update("a")
        p.update(slow)
        p.report("step a")
        assert slow.begun.wait(TIMEOUT)
        p.poll()
        assert closed == []
        slow.release.set()
        until(lambda: p.poll() or closed)
        assert closed == [("a", 1, "step a")]


def test_it_ends_before_its_step_is_reported():
    p, closed = pacer(1)
    with p:
        p.update(ended("a"))
        until(lambda: p.state)
        p.poll()
        assert closed == []
        p.report("step a")
        assert closed == [("a", 1, "step a")]


@pytest.mark.parametrize("ahead", [1, 2, 3])
def test_no_more_updates_are_unfinished_than_may_lag(ahead):
    p, closed = pacer(ahead)
    updates = [Update(i) for i in range(ahead + 2)]
    with p:
        for update in updates[:ahead]:
            p.update(update)
            p.report(update.name)
        assert closed == [] and updates[0].begun.wait(TIMEOUT)
        assert not any(update.begun.is_set() for update in updates[1:])  # one at a time
        later(updates[0])
        p.update(updates[ahead])  # waits for the first one
        assert updates[0].release.is_set() and [c[-1] for c in closed] == [0]
        for update in updates:
            update.release.set()
        p.report(updates[ahead].name)
        assert p.state == [u.name for u in updates[:-1]]
        assert [c[-1] for c in closed] == p.state


def test_a_step_is_closed_before_the_next_update_takes_the_state():
    events = []

    def consume(name):
        def update(state):
            events.append(("begins", name))
            return state, None

        return update

    p = Pacer(None, 0, 2, lambda state, version, result, report: events.append(("closed", report)))
    with p:
        for name in "abcd":
            p.update(consume(name))
            p.report(name)
        p.catch_up()
    assert events == [(what, name) for name in "abcd" for what in ("begins", "closed")]


def test_at_report_an_update_does_not_begin_before_and_nobody_waits_for_it():
    p, closed = pacer(1, at_report=True)
    with p:
        slow = Update("a")
        p.update(slow)
        p.catch_up()
        assert not slow.begun.wait(0.05) and closed == []
        p.report("step a")
        assert slow.begun.wait(TIMEOUT) and closed == []
        later(slow)
        p.catch_up()
        assert closed == [("a", 1, "step a")]


def test_at_report_an_update_begins_for_him_who_wants_its_state():
    p, closed = pacer(1, at_report=True)
    with p:
        p.update(ended("a"))
        assert p.state == ["a"] and closed == []
        p.report("step a")
        p.catch_up()
        assert closed == [("a", 1, "step a")]


@pytest.mark.parametrize("ahead", [0, 1])
def test_an_error_is_raised_as_it_is(ahead):
    p, closed = pacer(ahead)
    with p:
        failing = Update("a", FloatingPointError("loss nan"))
        failing.release.set()
        with pytest.raises(FloatingPointError, match="^loss nan$"):
            p.update(failing)
            p.report("step a")
            until(lambda: p.poll())
    assert closed == []


def test_leaving_waits_for_what_is_under_way_and_begins_nothing_more():
    p, closed = pacer(2)
    slow, never = Update("a"), Update("b")
    with pytest.raises(KeyError), p:
        p.update(slow)
        p.report("step a")
        p.update(never)
        assert slow.begun.wait(TIMEOUT)
        later(slow)
        raise KeyError("the loop failed")
    assert slow.release.is_set() and not never.begun.is_set() and closed == []
