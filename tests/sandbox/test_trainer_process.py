"""The pool and the process around it: Ctrl-C, kill -9, and JAX. Each trainer is a process of its own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import sandbox_checks

ROOT = pathlib.Path(__file__).parents[2]

PRELUDE = """
import os, signal, sys, time
from spade_jax.sandbox import Limits, Pool
SPIN = "class E:\\n def reset(self, seed=None): return '', {}\\n def step(self, a):\\n  while True: pass"
pool = Pool(Limits(call_seconds=600.0, cpu_seconds=600))
def play(hash_seed=0):
    env = pool.open(SPIN, "E", hash_seed=hash_seed)
    assert pool.call(env, "construct").ok and pool.call(env, "reset", 0).ok
    return env
"""


def trainer(script: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def output(script: str, timeout: float = 60) -> str:
    process = trainer(script)
    said, _ = process.communicate(timeout=timeout)
    assert process.returncode == 0, said
    return said


SPINNERS = """
envs = [play(0), play(0), play(1)]
for env in envs: pool.request(env, "step", "")
pool.poll(0.2)
pids = [s.process.pid for s in pool._servers.values()] + [e.pid for e in pool._processes.values()]
print(*pids, flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_trainer(number):
    process = trainer(SPINNERS + "time.sleep(600)")
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 5 and not any(map(sandbox_checks.gone, pids))
    process.send_signal(number)
    process.wait()
    process.stdout.close()
    assert sandbox_checks.eventually(lambda: all(map(sandbox_checks.gone, pids)))


def test_nothing_outlives_the_trainer_even_where_a_copy_of_its_sockets_does():
    """A fork of the trainer keeps the control sockets open: the servers see that their parent changed."""
    process = trainer(SPINNERS + "if os.fork() == 0: print('copied', flush=True)\ntime.sleep(600)")
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert process.stdout.readline() == "copied\n"  # by the copy: there is one before the trainer dies
    process.kill()
    process.wait()
    try:
        assert sandbox_checks.eventually(lambda: all(map(sandbox_checks.gone, pids)))
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the copy; its session is the trainer's
        process.stdout.close()


def test_a_child_outlives_neither_its_server_nor_the_refusal_to_die_with_it():
    script = """
source = "import ctypes\\nctypes.CDLL(None).prctl(1, 0)\\n" + SPIN  # PR_SET_PDEATHSIG: none
env = pool.open(source, "E")
assert pool.call(env, "construct").ok
pid = pool._processes[env].pid
pool.request(env, "step", "")
os.kill(pool._servers[0].process.pid, signal.SIGKILL)
(reply,) = pool.poll(None)
print(reply.kind, pid)
pool.shutdown()
"""
    kind, pid = output(script).split()[-2:]
    assert kind == "infrastructure"
    assert sandbox_checks.eventually(lambda: sandbox_checks.gone(int(pid)))


def test_ctrl_c_reaches_the_trainer_alone():
    script = """
env = play()
servers = [s.process.pid for s in pool._servers.values()]
try:
    os.killpg(0, signal.SIGINT)
    time.sleep(5)
except KeyboardInterrupt:
    pass
assert pool.call(env, "reset", 1).ok
play()
assert servers == [s.process.pid for s in pool._servers.values()]
pool.shutdown()
print("ended in order")
"""
    assert output(script).endswith("ended in order\n")


def test_a_fork_of_the_trainer_does_not_shut_its_pool_down():
    script = """
env = play()
pid = os.fork()
if pid == 0:
    pool.shutdown()
    os._exit(0)
os.waitpid(pid, 0)
assert pool.call(env, "reset", 1).ok
pool.shutdown()
"""
    assert output(script) == ""


def test_the_room_and_its_processes_never_import_jax():
    script = """
env = play()
assert not {"jax", "jaxlib", "numpy"} & set(sys.modules)
servers = [s.process.pid for s in pool._servers.values()]
for pid in servers + [e.pid for e in pool._processes.values()]:
    assert len(os.listdir(f"/proc/{pid}/task")) == 1
    if pid in servers:  # a child's are those of its server, and hidden from all but root
        text = open(f"/proc/{pid}/maps").read()
        assert "jax" not in text and "numpy" not in text
pool.shutdown()
"""
    assert output(script) == ""


def test_jax_may_start_later_and_fork_servers_restart_after_it():
    script = """
env = play()
import jax
import jax.numpy as jnp
assert float(jnp.ones(8).sum()) == 8.0
assert pool.call(env, "reset", 1).ok
play()
first = pool._servers[0].process.pid
os.kill(first, signal.SIGKILL)
while pool._servers[0].process.pid == first:
    pool.poll()
assert pool.call(env, "reset", 1).kind == "infrastructure"
play()
assert float(jax.jit(lambda x: x * 2)(jnp.ones(8)).sum()) == 16.0
pool.shutdown()
print("both work")
"""
    assert "both work" in output(script, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["all", "trainer"])
def test_time_in_which_processes_stood_still_is_nobodys(what):
    """As where a batch system suspends a job: neither the call under way nor the rest of its episode has run out."""
    script = """
from spade_jax.sandbox import pool as pool_module
pool_module._UNSEEN_SECONDS = 0.5
pool.shutdown()
BUSY = SPIN.replace("while True: pass", "until = time.perf_counter() + 0.7\\n  while time.perf_counter() < until: pass")
BUSY = "import time\\n" + BUSY + "\\n  return '', 0.0, False, False, {}"
pool = Pool(Limits(call_seconds=1.5, episode_seconds=2.5))
env = pool.open(BUSY, "E")
assert pool.call(env, "construct").ok and pool.call(env, "reset", 0).ok
pool.request(env, "step", "")
print(*(s.process.pid for s in pool._servers.values()), pool._processes[env].pid, flush=True)
(first,) = pool.poll(None)
print(first.kind, first.seconds > 3.0, pool.call(env, "step", "").kind)
pool.shutdown()
"""
    process = trainer(script)
    groups = [process.pid]
    others = [int(pid) for pid in process.stdout.readline().split()]
    groups += others if what == "all" else []
    time.sleep(0.2)  # until it waits for the reply
    try:
        for number, seconds in ((signal.SIGSTOP, 4.0), (signal.SIGCONT, 0.0)):
            for group in groups:
                os.killpg(group, number)
            time.sleep(seconds)
        said, _ = process.communicate(timeout=60)
    finally:
        process.kill()
    assert said == "ok True ok\n"


@pytest.mark.slow
def test_a_fork_server_that_hangs_is_replaced_and_leaves_nothing():
    script = """
from spade_jax.sandbox import pool as pool_module
pool_module._REAP_SECONDS = 1.0
pool.shutdown()
pool = Pool(Limits(), max_live=2)
pids = []
for _ in range(2):
    env = play()
    pids.append(pool._processes[env].pid)
hung = pool._servers[0].process.pid
os.killpg(hung, signal.SIGSTOP)  # it and the inner server; the children's sessions are their own
pool.close(env)
pool.close(env - 1)  # both places are free, but nobody says so
last = pool.open(SPIN, "E")
pool.request(last, "construct")
replies = pool.poll(20.0)
print(*(reply.kind for reply in replies), hung != pool._servers[0].process.pid)
print(hung, *pids, flush=True)
pool.shutdown()
"""
    said = output(script).splitlines()
    assert said[-2] == "ok True"
    pids = list(map(int, said[-1].split()))
    assert sandbox_checks.eventually(lambda: all(map(sandbox_checks.gone, pids)))
    # The inner server is of the same group.
    assert sandbox_checks.eventually(lambda: pids[0] not in map(_group, pathlib.Path("/proc").glob("[0-9]*/stat")))


def _group(stat: pathlib.Path) -> int:
    try:
        return int(stat.read_text().rpartition(")")[2].split()[2])
    except OSError:
        return 0
