"""The pool on a Ray cluster of three nodes on this machine: the local pool's answers, and nodes that die and come.

Collected where the extra [ray] is installed. Tests with the name of one in test_pool.py are that one.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
import sandbox_checks
import test_pool
from sandbox_checks import COUNTER
from test_pool import LIMITS, SLOW, constructed, program

from spade_jax.sandbox import Pool, SandboxError, ray_pool

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = pathlib.Path(__file__).parents[2]
STORE = 80 * 2**20  # bytes; the least that Ray takes
# A node that does not answer for 5 s has died, not for 15.
QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 10}

test_plays_the_contract = test_pool.test_plays_the_contract
test_construct_again_starts_the_module_anew = test_pool.test_construct_again_starts_the_module_anew
test_info_keeps_what_json_holds_and_names_the_rest = test_pool.test_info_keeps_what_json_holds_and_names_the_rest
test_a_program_that_does_not_start_says_why = test_pool.test_a_program_that_does_not_start_says_why
test_a_faulty_step_is_an_exception = test_pool.test_a_faulty_step_is_an_exception_and_the_environment_goes_on
test_hash_seeds_differ_between_servers = test_pool.test_hash_seeds_differ_between_servers_and_hold_within_one
test_pipelined_requests_are_answered_in_order = test_pool.test_pipelined_requests_are_answered_in_order
test_call_keeps_the_replies_of_others = test_pool.test_call_keeps_the_replies_of_others
test_large_source_and_action = test_pool.test_large_source_and_action
test_a_deadline_begins_when_it_is_the_calls_turn = test_pool.test_a_deadline_begins_when_it_is_the_calls_turn
test_poll_with_a_timeout_returns_empty = test_pool.test_poll_with_a_timeout_returns_empty
test_death_answers_all_that_was_owed = test_pool.test_death_answers_all_that_was_owed
test_close_forgets_and_is_idempotent = test_pool.test_close_forgets_and_is_idempotent
test_close_before_the_child_exists = test_pool.test_close_before_the_child_exists
test_wrong_use_raises = test_pool.test_wrong_use_raises


class Cluster:
    """A head without cores, as on the trainer's machine, and two nodes with one."""

    def __init__(self):
        self._cluster = cluster_utils.Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False, "_system_config": QUICK,
            },
        )  # fmt: skip
        self.address = self._cluster.address
        self.nodes = {}
        try:
            for _ in range(2):
                self.add()
        except BaseException:
            self.end()
            raise

    def add(self) -> str:
        """Starts a node; its id."""
        node = self._cluster.add_node(num_cpus=1, object_store_memory=STORE)
        self.nodes[node.node_id] = node
        return node.node_id

    def kill(self, node: str) -> None:
        """kill -9 of everything that Ray runs there itself."""
        self._cluster.remove_node(self.nodes.pop(node), allow_graceful=False)

    def alive(self) -> set[str]:
        """Ids of the nodes with cores that Ray believes to be alive."""
        return {node["NodeID"] for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")}

    def mend(self) -> None:
        """Waits until Ray has noticed who died, and replaces whom it gave up since the machine was too busy."""
        assert sandbox_checks.eventually(lambda: self.alive() <= set(self.nodes), seconds=120.0)
        while lost := set(self.nodes) - self.alive():
            self.kill(lost.pop())
            self.add()

    def processes(self, node: str) -> list[int]:
        """Of Ray's workers on a node, and of the fork servers below them."""
        (raylet,) = self.nodes[node].all_processes["raylet"]
        workers = [pid for pid, _ in sandbox_checks.children(raylet.process.pid)]
        return workers + [server for worker in workers for server, _ in sandbox_checks.children(worker)]

    def end(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


def started() -> Cluster:
    """A cluster; Ray gives every node 30 s to start, for which a busy machine may need another attempt."""
    for _ in range(2):
        with contextlib.suppress(Exception):
            return Cluster()
    return Cluster()


@pytest.fixture(scope="module")
def started_cluster():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Ray's workers have to find this package, and must not touch an accelerator.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        cluster = started()
        ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        yield cluster
        cluster.end()


@pytest.fixture
def cluster(started_cluster):
    """With two live nodes, and no dead one that Ray would still offer."""
    started_cluster.mend()
    return started_cluster


@pytest.fixture(scope="module")
def shared(started_cluster):
    with ray_pool.RayPool(LIMITS, max_live=64) as pool:
        yield pool


@pytest.fixture
def pool(cluster, shared):
    assert sandbox_checks.eventually(lambda: not shared.poll(0) and len(shared.nodes) == 2, seconds=120.0)
    yield shared
    for env in list(shared._envs):
        shared.close(env)
    shared.poll()


def where(pool, env) -> str:
    return pool._envs[env].node.id


def test_everything_holds_on_the_nodes_that_holds_here(pool):
    with Pool(LIMITS, max_live=3) as local:
        assert pool.layers == local.layers
    assert [cores for _, cores in pool.nodes] == [1, 1]


def test_answers_are_those_of_the_local_pool(pool):
    """A sound program, faulty ones and hostile ones, all at once."""
    hostile = [attack for attack in sandbox_checks.attacks() if "timeout" not in attack.expect][::5]
    sources = [(COUNTER, "Counter"), (program(step="a: 1 / 0"), "E"), ("x = (", "E"), ("class Other: pass", "E")]
    sources += [(attack.source, "Hostile") for attack in hostile]

    def play(pool):
        found = {}
        for source, class_name in sources:
            env = pool.open(source, class_name)
            for method, *args in (("construct",), ("reset", 5), ("step", "a"), ("step", "b"), ("secrets",)):
                found[pool.request(env, method, *args)] = (len(found), method)
        answers = [None] * len(found)
        while None in answers:
            for reply in pool.poll(None):
                index, method = found[reply.ticket]
                answers[index] = (method, reply.ok, reply.kind, reply.error, reply.value)
        return answers

    with Pool(LIMITS, max_live=64) as local:
        here = play(local)
    there = play(pool)
    assert [answer[:3] for answer in there] == [answer[:3] for answer in here]
    assert there[:20] == here[:20]  # what the others say may hang on the process, its memory say
    assert {answer[2] for answer in here} >= {"ok", "exception", "died", "protocol"}


def test_every_attack_on_the_host_is_contained_on_the_nodes(cluster):
    with ray_pool.RayPool(sandbox_checks.HOSTILE_LIMITS, max_live=8) as pool:
        siblings = [pool.open(COUNTER, "Counter") for _ in range(2)]
        for sibling in siblings:
            sandbox_checks.play_counter(pool, sibling)
        assert where(pool, siblings[0]) != where(pool, siblings[1])
        before = [cluster.processes(node) for node in cluster.nodes]
        for attack in sandbox_checks.attacks():
            env, replies = sandbox_checks.run_attack(pool, attack)
            assert not sandbox_checks.escape(attack, replies), (attack.name, replies)
            pool.close(env)
        assert all(pool.call(sibling, "step", "still").ok for sibling in siblings)
        assert [cluster.processes(node) for node in cluster.nodes] == before


def test_environments_are_spread_over_the_nodes_by_their_cores(pool):
    envs = [constructed(pool, program()) for _ in range(6)]
    there = [where(pool, env) for env in envs]
    assert sorted(map(there.count, set(there))) == [3, 3]
    (first, *_) = there
    for env in [env for env in envs if where(pool, env) == first]:
        pool.close(env)
    assert where(pool, pool.open(program(), "E")) == first  # where there are the fewest now
    first_node = pool._nodes[first]
    first_node.cores = 4.0
    try:
        more = [where(pool, pool.open(program(), "E")) for _ in range(8)]
    finally:
        first_node.cores = 1.0
    assert more.count(first) == 8


def test_beyond_max_live_environments_wait_their_turn(cluster):
    with ray_pool.RayPool(LIMITS, max_live=3) as pool:
        envs = [pool.open(program(), "E") for _ in range(5)]
        tickets = {pool.request(env, "construct"): env for env in envs}
        answered = []
        while len(answered) < 3:
            answered += pool.poll(None)
        assert [tickets[reply.ticket] for reply in sorted(answered, key=lambda r: r.ticket)] == envs[:3]
        with pytest.raises(RuntimeError, match="3 sandbox environments are open and idle while more wait"):
            pool.call(envs[4], "construct")
        pool.close(envs[0])
        (reply,) = pool.poll(None)
        assert reply.env == envs[3] and reply.ok and pool.live == 3


def test_a_slow_environment_delays_no_other_on_its_node(pool):
    slow, other, quick = (constructed(pool, SLOW) for _ in range(3))
    assert where(pool, slow) == where(pool, quick) != where(pool, other)
    late = pool.request(slow, "step", "60", seconds=8.0)
    pool.poll()
    began = time.monotonic()
    assert all(pool.call(quick, "step", "0").ok for _ in range(10))
    assert time.monotonic() - began < 8.0  # whatever the machine is busy with: the slow one still has its time
    (reply,) = pool.poll(None)
    assert (reply.ticket, reply.kind, reply.error) == (late, "timeout", "step took longer than 8 s")


def test_a_batch_of_many_steps_is_few_messages(pool):
    envs = [constructed(pool, SLOW) for _ in range(32)]
    before = sum(node.batches for node in pool._nodes.values())
    for _ in range(10):
        owed = {pool.request(env, "step", "0") for env in envs}
        while owed:
            owed -= {reply.ticket for reply in pool.poll(None)}
    assert sum(node.batches for node in pool._nodes.values()) - before < 320 / 2


def test_a_node_that_dies_costs_its_own_environments_and_one_that_comes_is_used(cluster, monkeypatch):
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.2)
    with ray_pool.RayPool(LIMITS, max_live=4) as pool:
        envs = [constructed(pool, SLOW) for _ in range(4)]
        waiting = pool.open(SLOW, "E")  # its place comes free with the node
        ready = pool.request(waiting, "construct")
        doomed = where(pool, envs[0])
        lost = [env for env in envs if where(pool, env) == doomed]
        kept = [env for env in envs if env not in lost]
        owed = {pool.request(env, "step", "60", seconds=100.0): env for env in lost for _ in range(2)}
        kept_tickets = [pool.request(env, "step", "0") for env in kept]
        answered = []
        while len(answered) < 2:
            answered += pool.poll(None)
        assert {reply.ticket for reply in answered} == set(kept_tickets) and len(lost) == 2

        processes = cluster.processes(doomed)
        assert len(processes) >= 3  # the actor and its two fork servers
        cluster.kill(doomed)
        replies = []
        while len(replies) < 5:
            replies += pool.poll(None)
        first = [reply for reply in replies if reply.ticket in owed]
        assert [owed[reply.ticket] for reply in first] == [reply.env for reply in first] and len(first) == 4
        assert all(reply.kind == "infrastructure" and "the environment host" in reply.error for reply in first)
        assert [reply.ok for reply in replies if reply.ticket == ready] == [True]
        assert pool.call(lost[0], "step", "0").kind == "infrastructure"
        assert all(pool.call(env, "step", "0").ok for env in kept)  # who was elsewhere has not noticed
        assert sandbox_checks.eventually(lambda: all(map(sandbox_checks.gone, processes)))
        assert len(pool.nodes) == 1 and {where(pool, env) for env in (*kept, waiting)} == set(cluster.nodes)

        for env in (*envs, waiting):
            pool.close(env)
        assert pool.live == 0
        come = cluster.add()
        assert sandbox_checks.eventually(lambda: not pool.poll(0) and len(pool.nodes) == 2, seconds=120.0)
        env, other = (constructed(pool, SLOW) for _ in range(2))
        assert {where(pool, env), where(pool, other)} == set(cluster.nodes) and come in cluster.nodes


def test_a_node_that_died_a_moment_before_does_not_stop_the_start(cluster, monkeypatch):
    """Ray goes on offering it for some seconds: here for the first look, however long the killing takes."""
    nodes, offered = ray.nodes, [ray.nodes()]
    monkeypatch.setattr(ray, "nodes", lambda: offered.pop() if offered else nodes())
    doomed = next(iter(cluster.nodes))
    try:
        cluster.kill(doomed)
        with ray_pool.RayPool(LIMITS, max_live=4) as pool:
            assert not offered
            assert {where(pool, constructed(pool, SLOW)) for _ in range(2)} == set(cluster.nodes)
    finally:
        cluster.add()


def test_a_node_whose_actor_ends_or_falls_silent_is_lost_and_tried_again(cluster, monkeypatch):
    for name, seconds in (("_LOOK_SECONDS", 0.2), ("_RETRY_SECONDS", 1.0), ("_SILENT_SECONDS", 8.0)):
        monkeypatch.setattr(ray_pool, name, seconds)
    with ray_pool.RayPool(LIMITS, max_live=4) as pool:
        for how, reason in ((signal.SIGKILL, "is lost: "), (signal.SIGSTOP, "has said nothing for 8 s")):
            first, second = (constructed(pool, SLOW) for _ in range(2))
            ticket = pool.request(first, "step", "60", seconds=100.0)
            pool.poll()
            server = ray.get(pool._envs[first].node.actor.__ray_call__.remote(lambda _: os.getpid()))
            os.kill(server, how)
            (reply,) = pool.poll(None)
            assert (reply.ticket, reply.kind) == (ticket, "infrastructure") and reason in reply.error
            assert pool.call(second, "step", "0").ok
            assert sandbox_checks.eventually(lambda: not pool.poll(0) and len(pool.nodes) == 2, seconds=60.0)
            assert sandbox_checks.eventually(lambda server=server: sandbox_checks.gone(server))
            for env in (first, second):
                pool.close(env)


def command(pid: int) -> bytes:
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def test_without_a_node_it_waits_for_one_and_then_says_so(cluster, monkeypatch):
    monkeypatch.setattr(ray_pool, "_LOOK_SECONDS", 0.2)
    monkeypatch.setattr(ray_pool, "_ALONE_SECONDS", 1.0)
    with ray_pool.RayPool(LIMITS, max_live=4) as pool:
        monkeypatch.setattr(ray, "nodes", lambda: [])
        assert sandbox_checks.eventually(lambda: not pool.poll() and not pool.nodes)
        pool.request(pool.open(SLOW, "E"), "construct")
        with pytest.raises(SandboxError, match="the Ray cluster has had no node for environments for 1 s"):
            pool.poll(None)


def test_a_node_that_cannot_have_the_sandbox_is_named(cluster, monkeypatch):
    with pytest.raises(SandboxError, match=r"the environment host \S+ cannot run the sandbox: .*max_live=1000000000"):
        ray_pool.RayPool(LIMITS, max_live=10**9)
    monkeypatch.setattr(ray_pool.ray_host, "source_digest", lambda: "of another version")
    with pytest.raises(SandboxError, match="another version of spade_jax or of Python; install what runs here"):
        ray_pool.RayPool(LIMITS, max_live=4)


def test_a_cluster_without_cores_is_refused(cluster, monkeypatch):
    nodes = ray.nodes
    monkeypatch.setattr(ray, "nodes", lambda: [node for node in nodes() if not node["Resources"].get("CPU")])
    with pytest.raises(SandboxError, match="no node of the Ray cluster offers a CPU"):
        ray_pool.RayPool(LIMITS, max_live=4)


def test_no_package_and_no_cluster_get_a_sentence(monkeypatch):
    script = """
import sys
from spade_jax.sandbox import SandboxError
from spade_jax.sandbox.ray_pool import RayPool
for address in ("127.0.0.1:1", "nowhere"):
    try:
        RayPool(address=address)
    except SandboxError as error:
        print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    refused, unknown = done.stdout.splitlines()
    assert refused.startswith("sandbox.ray_address=127.0.0.1:1 leads to no Ray cluster ([Errno 111] Connection ref")
    assert unknown.startswith("sandbox.ray_address=nowhere leads to no Ray cluster (")
    assert "ray start --head" in refused and "ray start --head" in unknown
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SandboxError, match=r"sandbox.hosts=ray needs the package ray .*; install spade_jax\[ray\]"):
        ray_pool.RayPool()


def test_nothing_outlives_the_trainer(cluster):
    script = f"""
import sys, time
from spade_jax.sandbox.ray_pool import RayPool
pool = RayPool(address={cluster.address!r}, max_live=4)
spin = "class E:\\n def reset(self, seed=None): return '', {{}}\\n def step(self, a):\\n  while True: pass"
for _ in range(2):
    env = pool.open(spin, "E")
    pool.call(env, "construct")
    pool.request(env, "step", "")
pool.poll()
print("playing", flush=True)
time.sleep(600)
"""
    before = {pid for node in cluster.nodes for pid in cluster.processes(node)}
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "playing\n"
        born = {pid for node in cluster.nodes for pid in cluster.processes(node)} - before
        assert len({pid for pid in born if b"zygote" in command(pid)}) == 4
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert sandbox_checks.eventually(lambda: all(map(sandbox_checks.gone, born)), seconds=60.0)


@pytest.fixture(scope="module")
def runs():
    sys.path.insert(0, str(ROOT / "tests" / "multihost"))
    try:
        import trainer_runs
    finally:
        sys.path.pop(0)
    return trainer_runs


def remote(cluster) -> tuple[str, ...]:
    return ("--config.sandbox.hosts=ray", f"--config.sandbox.ray_address={cluster.address}")


def test_the_trainer_ends_in_the_same_bits_as_on_the_local_pool(cluster, runs, tmp_path):
    """The whole of SPADE: programs written, gated, played and learnt from."""
    held = []
    for name, extra in (("local", ()), ("ray", remote(cluster))):
        assert runs.finish(runs.start(tmp_path / name, 1, 1, algorithm="spade", extra=extra), 900.0) == [0], (
            tmp_path / name / "log.0"
        ).read_text()
        held.append(runs.held(tmp_path / name))
    assert held[0] == held[1]
    assert "on 2 nodes of a Ray cluster, 2 cores" in (tmp_path / "ray" / "log.0").read_text()


def test_a_node_that_dies_under_the_trainer_makes_episodes_void_and_nobody_pays(cluster, runs, tmp_path):
    (run,) = runs.start(tmp_path, 1, 1, algorithm="spade", extra=(*remote(cluster), "--config.rollout.seeds=8"))
    doomed = next(iter(cluster.nodes))
    try:
        # Killed when the second step's play begins, that is when the first step has been written down.
        assert sandbox_checks.eventually(lambda: (tmp_path / "held.0").exists() or run.poll() is not None, 900.0)
        cluster.kill(doomed)
        assert runs.finish([run], 900.0) == [0], (tmp_path / "log.0").read_text()
    finally:
        run.kill()
        cluster.add()
    (steps,) = runs.held(tmp_path)
    lines = [json.dumps(step["scalars"]) for step in steps]
    assert len(lines) == 2, lines
    assert steps[1]["scalars"]["agent/infrastructure_share"] > 0.0
    assert steps[1]["scalars"]["agent/void_share"] >= steps[1]["scalars"]["agent/infrastructure_share"]
