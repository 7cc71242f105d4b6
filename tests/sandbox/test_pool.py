"""The pool with sound and with merely faulty programs; hostile ones are test_hostile_host.py."""

from __future__ import annotations

import collections
import contextlib
import os
import pathlib
import random
import select
import signal
import time

import pytest
import sandbox_checks
from sandbox_checks import COUNTER

from spade_jax.sandbox import Limits, Pool, SandboxError, zygote

LIMITS = Limits(memory_mb=64, call_seconds=3.0)


@pytest.fixture(scope="module")
def shared():
    with Pool(LIMITS, max_live=64) as pool:
        yield pool


@pytest.fixture
def pool(shared):
    yield shared
    for env in list(shared._envs):
        shared.close(env)
    sandbox_checks.settle(shared)


def program(**methods: str) -> str:
    """A class E with the given methods; each value is `arguments: expression`."""
    lines = ["import time, random", "class E:", " def reset(self, seed=None): return str(seed), {}"]
    for name, body in methods.items():
        arguments, _, expression = body.partition(":")
        lines.append(f" def {name}(self{arguments and ','}{arguments}): return {expression.strip()}")
    return "\n".join(lines)


def constructed(pool, source, class_name="E", **options) -> int:
    env = pool.open(source, class_name, **options)
    reply = pool.call(env, "construct")
    assert reply.ok, reply
    return env


STEP = 'a: (a, 0.0, False, False, {"pid": __import__("os").getpid()})'


def test_plays_the_contract(pool):
    env = pool.open(COUNTER, "Counter")
    sandbox_checks.play_counter(pool, env)
    assert pool.call(env, "solution").value == ["up", "up", "up"]
    assert pool.call(env, "secrets").value == []
    assert pool.call(env, "close").ok
    reply = pool.call(env, "step", "b")
    assert (reply.ok, reply.kind, reply.error, reply.env) == (True, "ok", "", env)
    assert 0 < reply.seconds < 3


def test_construct_again_starts_the_module_anew(pool):
    source = "seen = []\n" + program(step="a: (str(seen.append(a) or len(seen)), 0.0, False, False, {})")
    env = constructed(pool, source)
    assert [pool.call(env, "step", "x").value[0] for _ in range(3)] == ["1", "2", "3"]
    assert pool.call(env, "construct").ok
    assert pool.call(env, "step", "x").value[0] == "1"


def test_dataclasses_and_postponed_annotations_work(pool):
    source = "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass P:\n  x: int = 3\n"
    env = constructed(pool, source + program(step="a: (str(P().x), 0.0, False, False, {})"))
    assert pool.call(env, "step", "x").value[0] == "3"


def test_info_keeps_what_json_holds_and_names_the_rest(pool):
    info = '{1: (2, 3), "s": {4}, "big": 2**70, "inf": float("inf"), "f": __import__("fractions").Fraction(1, 3)}'
    env = constructed(pool, program(step=f"a: ('', 0.0, False, False, {info})"))
    assert pool.call(env, "step", "").value[4] == {
        "1": [2, 3],
        "s": "<set>",
        "big": "<int>",
        "inf": "inf",
        "f": "<Fraction>",
    }


@pytest.mark.parametrize(
    "source, error",
    [
        ("class Other: pass", "NameError: the source defines no class E"),
        ("x = (", "SyntaxError: '(' was never closed (<program>, line 1) (line 1)"),
        ("import numpy", "ModuleNotFoundError: No module named 'numpy' (line 1)"),
        ("class E:\n def __init__(self):\n  raise KeyError('a')", "KeyError: 'a' (line 3)"),
        (
            "class E:\n def __init__(self, a): pass",
            "TypeError: E.__init__() missing 1 required positional argument",
        ),
        ("\x00", "SyntaxError"),
        ("'\ud800'", "UnicodeEncodeError"),
    ],
)
def test_a_program_that_does_not_start_says_why(pool, source, error):
    reply = pool.call(pool.open(source, "E"), "construct")
    assert (reply.kind, reply.ok, reply.value) == ("exception", False, None)
    assert reply.error.startswith(error)


@pytest.mark.parametrize(
    "expression, error",
    [
        ("1 / 0", "ZeroDivisionError: division by zero (line 4)"),
        ("('', 0.0, False, False)", "ContractError: step() must return five values, got tuple of length 4"),
        ("(None, 0.0, False, False, {})", "ContractError: step() observation must be a str, got NoneType"),
        ("('', float('nan'), False, False, {})", "ContractError: step() reward is not finite"),
        ("('', True, False, False, {})", "ContractError: step() reward must be a number, got bool"),
        ("('', 0.0, 0, False, {})", "ContractError: step() terminated must be a bool, got int"),
        ("('', 0.0, False, False, None)", "ContractError: step() info must be a dict, got NoneType"),
        ("('', 0.0, False, False, {'a': 'x' * 300000})", "ContractError: step() reply of 300042 bytes"),
    ],
)
def test_a_faulty_step_is_an_exception_and_the_environment_goes_on(pool, expression, error):
    env = constructed(pool, program(step=f"a: {expression}"))
    reply = pool.call(env, "step", "x")
    assert reply.kind == "exception" and reply.error.startswith(error), reply
    assert pool.call(env, "reset", 3).value == ("3", {})


def test_methods_that_are_missing(pool):
    env = constructed(pool, program())
    assert pool.call(env, "solution").error == "AttributeError: 'E' object has no attribute 'solution'"
    assert pool.call(env, "close").ok
    early = pool.open(program(), "E")
    assert pool.call(early, "reset", 0).error == "RuntimeError: reset before construct"


def test_hash_seeds_differ_between_servers_and_hold_within_one(pool):
    source = program(step="a: (repr((hash('a'), list({'a', 'b', 'c', 'd', 'e', 'f', 'g'}))), 0.0, False, False, {})")

    def said(hash_seed):
        return pool.call(constructed(pool, source, hash_seed=hash_seed), "step", "").value[0]

    assert said(0) == said(0) and said(1) == said(1)
    assert said(0) != said(1)


def test_unseeded_randomness_differs_between_children(pool):
    """Children of one server must not share a generator's state, or a coin flip would look deterministic."""
    source = program(step="a: (repr(random.random()), 0.0, False, False, {})")
    assert len({pool.call(constructed(pool, source), "step", "").value[0] for _ in range(4)}) == 4


def test_pipelined_requests_are_answered_in_order(pool):
    env = pool.open(program(step=STEP), "E")
    tickets = [pool.request(env, "construct"), pool.request(env, "reset", 1)]
    tickets += [pool.request(env, "step", str(i)) for i in range(50)]
    replies = []
    while len(replies) < len(tickets):
        replies += pool.poll(None)
    assert [reply.ticket for reply in replies] == tickets
    assert [reply.value[0] for reply in replies[2:]] == [str(i) for i in range(50)]
    assert pool.poll(None) == []  # nothing is outstanding, so nothing to wait for


def test_call_keeps_the_replies_of_others(pool):
    first, second = (constructed(pool, program(step=STEP)) for _ in range(2))
    ticket = pool.request(first, "step", "a")
    time.sleep(0.05)
    assert pool.call(second, "step", "b").value[0] == "b"
    assert [reply.ticket for reply in pool.poll(None)] == [ticket]


def test_large_source_and_action(pool):
    action = "é" * 1_000_000
    source = "#" + "x" * 2_000_000 + "\n" + program(step="a: (str(len(a)), 0.0, False, False, {})")
    env = constructed(pool, source)
    assert [pool.call(env, "step", action, seconds=20.0).value[0] for _ in range(2)] == ["1000000"] * 2


SLOW = program(step="a: (time.sleep(float(a)) or '', 0.0, False, False, {})")


def test_a_slow_environment_delays_no_other(pool):
    slow, quick = constructed(pool, SLOW), constructed(pool, SLOW)
    began = time.monotonic()
    late = pool.request(slow, "step", "60", seconds=0.5)
    assert pool.call(quick, "step", "0").ok
    assert time.monotonic() - began < 0.4
    (reply,) = pool.poll(None)
    assert (reply.ticket, reply.kind, reply.error) == (late, "timeout", "step took longer than 0.5 s")
    assert 0.5 <= reply.seconds < 2
    assert pool.call(slow, "step", "0").kind == "timeout"
    assert pool.call(quick, "step", "0").ok


def test_a_deadline_begins_when_it_is_the_calls_turn(pool):
    env = constructed(pool, SLOW)
    for _ in range(4):
        pool.request(env, "step", "0.3", seconds=0.9)
    replies = []
    while len(replies) < 4:
        replies += pool.poll(None)
    assert all(reply.ok for reply in replies)


def test_a_reply_that_waited_for_the_trainer_is_not_late(pool):
    env = constructed(pool, SLOW)
    pool.request(env, "step", "0", seconds=0.3)
    time.sleep(0.5)  # the trainer computes
    assert pool.poll(0)[0].ok


def test_poll_with_a_timeout_returns_empty(pool):
    env = constructed(pool, SLOW)
    pool.request(env, "step", "0.5")
    began = time.monotonic()
    assert pool.poll(0.05) == [] and pool.poll(0) == []
    assert time.monotonic() - began < 0.4


def test_waiting_for_slow_programs_takes_next_to_no_cpu_time(pool):
    env = constructed(pool, SLOW)
    before = time.process_time()
    assert all(pool.call(env, "step", "0.02").ok for _ in range(20))
    assert time.process_time() - before < 0.2


def test_cpu_time_is_limited_over_all_calls():
    with Pool(Limits(cpu_seconds=1, call_seconds=20.0)) as pool:
        env = constructed(pool, program(step="a: sum(1 for _ in iter(int, 1))"))
        reply = pool.call(env, "step", "")
        assert (reply.kind, reply.error) == ("timeout", "the child used more than 1 s of CPU time")


def test_the_calls_of_an_episode_share_a_deadline_which_reset_renews():
    with Pool(Limits(call_seconds=20.0, reset_seconds=20.0, episode_seconds=1.0)) as pool:
        env = constructed(pool, SLOW)
        for _ in range(2):
            assert pool.call(env, "reset", 0).ok
            assert pool.call(env, "step", "0.6").ok
        began = time.monotonic()
        late = pool.call(env, "step", "60")
        assert (late.kind, late.error) == ("timeout", "the calls of the episode together took longer than 1 s")
        assert 0.2 <= time.monotonic() - began < 10


def test_what_the_trainer_takes_does_not_count_as_the_episodes():
    with Pool(Limits(call_seconds=20.0, episode_seconds=0.6)) as pool:
        env = constructed(pool, SLOW)
        assert pool.call(env, "reset", 0).ok
        for _ in range(4):
            pool.request(env, "step", "0")
            time.sleep(0.4)  # the trainer computes, while the reply lies in the socket
            assert pool.poll(0)[0].ok


GREEDY = program(step="a: (setattr(self, 'kept', bytearray(b'x') * (int(a) * 2**20)) or '', 0.0, False, False, {})")


def test_beyond_the_memory_of_all_the_biggest_is_ended_and_is_not_to_blame():
    with Pool(Limits(memory_mb=300), memory_mb_total=400) as pool:
        small, middle, large = (constructed(pool, GREEDY) for _ in range(3))
        assert pool.call(small, "step", "20", seconds=20.0).ok and pool.call(middle, "step", "120", seconds=20.0).ok
        pool.request(small, "step", "20")
        time.sleep(0.6)
        assert pool.poll(None)[0].ok and pool.live == 3  # within the budget, nothing happens
        pool.call(large, "step", "250", seconds=20.0)  # answered, or caught at it
        assert sandbox_checks.eventually(lambda: not pool.poll(0) and pool.live == 2)
        reply = pool.call(large, "step", "1")
        assert reply.kind == "infrastructure"
        assert reply.error.startswith("all together held more than memory_mb_total=400 MiB, and this one the most (")
        assert pool.call(small, "step", "1").ok and pool.call(middle, "step", "1").ok


def test_death_answers_all_that_was_owed(pool):
    env = constructed(pool, program(step="a: __import__('os')._exit(7) if a == 'die' else (a, 0.0, False, False, {})"))
    tickets = [pool.request(env, "step", a) for a in ("a", "die", "b", "c")]
    replies = []
    while len(replies) < 4:
        replies += pool.poll(None)
    assert [reply.ticket for reply in replies] == tickets
    assert [reply.kind for reply in replies] == ["ok", "died", "died", "died"]
    assert replies[1].error == "the child exited with status 7"


def test_close_forgets_and_is_idempotent(pool):
    env = constructed(pool, SLOW)
    answered = pool.request(env, "step", "0")
    pool.request(env, "step", "60")
    time.sleep(0.1)
    other = constructed(pool, program(step=STEP))  # pumps: the first reply is in the pool now
    pool.close(env)
    pool.close(env)
    kept = pool.request(other, "step", "a")
    assert [reply.ticket for reply in pool.poll(None)] == [kept]
    late = pool.call(env, "step", "0")
    assert (late.kind, late.error, answered < kept) == ("died", "the environment is closed", True)


def test_close_before_the_child_exists(pool):
    for _ in range(20):
        pool.close(pool.open(COUNTER, "Counter"))
    sandbox_checks.settle(pool)
    assert pool.live == 0


def test_wrong_use_raises(pool):
    env = constructed(pool, program(step=STEP))
    with pytest.raises(ValueError, match="method 'run' is unknown; use one of construct"):
        pool.request(env, "run")
    with pytest.raises(ValueError, match="environment 10000000 was never opened"):
        pool.request(10_000_000, "step", "a")
    with pytest.raises(ValueError, match="hash_seed=2 has no fork server"):
        pool.open(COUNTER, "Counter", hash_seed=2)
    with pytest.raises(TypeError):
        pool.request(env, "step", object())
    assert pool.call(env, "step", "a").ok  # the refused request left no gap
    with pytest.raises(ValueError, match="isolation='total' is unknown; use one of strict, best_effort, none"):
        Pool(isolation="total")
    with pytest.raises(ValueError, match="layer 'wall' is unknown; use some of descriptors"):
        Pool(required=("wall",))
    with pytest.raises(ValueError, match="max_live=0"):
        Pool(max_live=0)
    with pytest.raises(ValueError, match=r"max_live=1000000000 needs \d+ descriptors"):
        Pool(max_live=10**9)


def test_beyond_max_live_environments_wait_their_turn():
    with Pool(LIMITS, max_live=3) as pool:
        envs = [pool.open(program(step=STEP), "E") for _ in range(10)]
        for env in envs:
            pool.request(env, "construct")
        pool.request(envs[9], "step", "last")
        done = []
        while len(done) < 11:
            for reply in pool.poll(None):
                assert reply.ok
                done.append(reply.env)
                if reply.env != envs[9]:
                    pool.close(reply.env)
            assert pool.live <= 3
        assert sorted(done) == [*envs, envs[9]]


def test_waiting_for_ever_is_refused():
    with Pool(LIMITS, max_live=2) as pool:
        idle = [constructed(pool, program(step=STEP)) for _ in range(2)]
        waiting = pool.open(program(step=STEP), "E")
        with pytest.raises(RuntimeError, match="2 sandbox environments are open and idle while more wait"):
            pool.call(waiting, "construct")
        assert pool.poll(0.05) == []
        pool.close(idle[0])
        assert pool.poll(None)[0].ok
        pool.close(pool.open(COUNTER, "Counter"))  # closed while it waits


def test_a_dead_fork_server_costs_its_own_environments_and_is_replaced():
    with Pool(LIMITS) as pool:
        lost, kept = constructed(pool, SLOW, hash_seed=0), constructed(pool, SLOW, hash_seed=1)
        idle = constructed(pool, SLOW, hash_seed=0)
        pool.request(lost, "step", "60")
        before = sandbox_checks.server_pids(pool)
        os.kill(before[0], signal.SIGKILL)
        (reply,) = pool.poll(None)
        assert (reply.env, reply.kind) == (lost, "infrastructure")
        assert "fork server ended (status -9)" in reply.error
        assert pool.call(idle, "step", "0").kind == "infrastructure"
        assert pool.call(kept, "step", "0").ok
        sandbox_checks.play_counter(pool, pool.open(COUNTER, "Counter"))
        after = sandbox_checks.server_pids(pool)
        assert after[0] != before[0] and after[1] == before[1]


def test_a_fork_server_killed_as_soon_as_it_has_started_is_replaced():
    with Pool(LIMITS) as pool:
        server = pool._servers[0]
        first = server.process.pid
        os.kill(sandbox_checks.server_pids(pool)[0], signal.SIGKILL)
        assert sandbox_checks.eventually(lambda: not pool.poll(0) and server.process.pid != first)
        second = server.process.pid
        select.select([server.control], [], [])  # it says that it is ready, which nobody has read yet
        os.kill(sandbox_checks.server_pids(pool)[0], signal.SIGKILL)
        assert sandbox_checks.eventually(lambda: sandbox_checks.gone(second))
        sandbox_checks.play_counter(pool, pool.open(COUNTER, "Counter", hash_seed=0))
        assert server.process.pid not in (first, second)


def test_a_fork_server_killed_while_it_tries_its_layers_has_them_all_when_it_is_replaced():
    with Pool(LIMITS) as pool:
        found, server = pool.layers, pool._servers[0]
        first = server.process.pid
        server.process.kill()
        assert sandbox_checks.eventually(lambda: not pool.poll(0) and server.process.pid != first)
        second = server.process.pid
        born = pathlib.Path(f"/proc/{second}/task/{second}/children")
        while not (trying := born.read_text().split()):
            pass
        os.kill(int(trying[0]), signal.SIGKILL)
        sandbox_checks.play_counter(pool, pool.open(COUNTER, "Counter", hash_seed=0))
        assert server.process.pid != second
        assert pool.layers == found


@pytest.mark.parametrize(
    ("interpreter", "reason"),
    [
        ("/bin/false", r"ended \(status 1\)"),
        ("/nowhere", "No such file or directory; this user must be able to run /nowhere"),
    ],
)
def test_a_fork_server_that_does_not_start_says_why(monkeypatch, interpreter, reason):
    message = f"the sandbox cannot start a fork server: .*{reason}"
    with Pool(max_live=3) as pool:
        monkeypatch.setattr(zygote.sys, "executable", interpreter)
        with pytest.raises(SandboxError, match=message):
            Pool(max_live=3)
        for server in list(pool._servers.values()):
            server.process.kill()
        pool.request(pool.open(COUNTER, "Counter"), "construct")
        with pytest.raises(SandboxError, match=message):
            until = time.monotonic() + 20.0  # with nothing outstanding, poll does not wait
            while time.monotonic() < until:
                pool.poll(1.0)


def test_random_killing_under_load_loses_no_ticket_and_leaks_nothing():
    rng = random.Random(0)
    with Pool(LIMITS, max_live=16) as pool:
        baseline = sandbox_checks.descriptors()
        shared = set(os.listdir("/dev/shm"))
        killed_servers = 0
        owed: dict[int, int] = {}  # ticket -> env
        answered: collections.Counter[str] = collections.Counter()
        for _ in range(120):
            env = pool.open(program(step=STEP), "E", hash_seed=rng.randrange(2))
            owed[pool.request(env, "construct")] = env
            for i in range(5):
                owed[pool.request(env, "step", str(i))] = env
        left = {env: 6 for env in owed.values()}
        while owed:
            for reply in pool.poll(None):
                assert owed.pop(reply.ticket) == reply.env
                answered[reply.kind] += 1
                left[reply.env] -= 1
                if not left[reply.env]:
                    pool.close(reply.env)
            running = [env.pidfd for env in pool._processes.values() if env.pidfd >= 0 and not env.doomed]
            if running and rng.random() < 0.3:
                with contextlib.suppress(ProcessLookupError):  # it went with a fork server that was killed just now
                    signal.pidfd_send_signal(rng.choice(running), signal.SIGKILL)
            servers = sandbox_checks.server_pids(pool)
            if servers and len(owed) < 720 - 150 * (killed_servers + 1) and killed_servers < 3:
                with contextlib.suppress(ProcessLookupError):  # the one killed last, not yet replaced
                    os.kill(rng.choice(servers), signal.SIGKILL)
                    killed_servers += 1  # a fork server, and with it all of its children
        # "infrastructure" is what a child becomes that is killed before its program could run, or with its server.
        assert set(answered) <= {"ok", "died", "infrastructure"}
        assert answered.total() == 720 and answered["ok"] > 0 and answered.total() > answered["ok"]
        sandbox_checks.settle(pool)
        assert killed_servers == 3

        def as_before() -> bool:  # the server killed last may be noticed, and replaced, only now
            servers = sandbox_checks.server_pids(pool)
            childless = [sandbox_checks.children(pid) for pid in servers] == [[], []]
            return not pool.poll(0) and childless and sandbox_checks.descriptors() == baseline

        assert sandbox_checks.eventually(as_before)
        assert set(os.listdir("/dev/shm")) <= shared


def test_shutdown_leaves_nothing():
    before = sandbox_checks.descriptors()
    pool = Pool(LIMITS)
    pids = sandbox_checks.server_pids(pool)
    for hash_seed in (0, 1):
        env = constructed(pool, SLOW, hash_seed=hash_seed)
        pool.request(env, "step", "60")
    pids += [env.pid for env in pool._processes.values()]
    pool.shutdown()
    pool.shutdown()
    assert len(pids) == 4 and all(sandbox_checks.gone(pid) for pid in pids)
    assert sandbox_checks.descriptors() == before
    with pytest.raises(RuntimeError, match="shut down"):
        pool.poll()


@pytest.mark.slow
def test_two_thousand_spawns_leak_nothing(pool):
    baseline = [sandbox_checks.descriptors(pid) for pid in ["self", *sandbox_checks.server_pids(pool)]]
    for i in range(2000):
        env = pool.open(program(step=STEP), "E", hash_seed=i % 2)
        assert pool.call(env, "construct").ok
        pool.close(env)
    sandbox_checks.settle(pool)
    assert [sandbox_checks.descriptors(pid) for pid in ["self", *sandbox_checks.server_pids(pool)]] == baseline
    assert [sandbox_checks.children(pid) for pid in sandbox_checks.server_pids(pool)] == [[], []]
    assert not pool._handlers.keys() - {server.control.fileno() for server in pool._servers.values()}
