from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys

import pytest

from spade_jax.runtime import distributed
from spade_jax.runtime.distributed import Given, Plan, Seen, check_devices, first_host, make_plan
from spade_jax.runtime.errors import RunError, UsageError

ROOT = pathlib.Path(__file__).parents[2]
NOTHING = Given()
FLAGS = Given("auto", "10.0.0.1:7000", 4, 3)

# Task 5 of 6 on the second of two nodes, as srun --nodes=2 --ntasks-per-node=... sets it.
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NUM_TASKS": "6",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_STEP_TASKS_PER_NODE": "4,2",
}
JOBSET = {
    "JOBSET_NAME": "spade",
    "REPLICATED_JOB_NAME": "slice",
    "JOB_INDEX": "1",
    "JOB_COMPLETION_INDEX": "2",
    "JOBSET_JOBS": "2",
    "JOBSET_PODS_PER_JOB": "4",
}


def test_one_process_by_itself():
    assert make_plan(NOTHING, {}) is None
    assert make_plan(Given("off"), SLURM) is None
    assert make_plan(NOTHING, SLURM | {"SLURM_STEP_NUM_TASKS": "1"}) is None
    # An sbatch script without srun is one process, whatever the job has been granted.
    assert make_plan(NOTHING, {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"}) is None
    assert make_plan(Given("auto", "h:1", 1, 0), {}) is None


def test_flags_win_over_the_environment():
    expected = Plan("flags", "10.0.0.1:7000", 4, 3)
    assert (
        make_plan(FLAGS, {}) == make_plan(FLAGS, SLURM) == make_plan(FLAGS._replace(distributed="on"), {}) == expected
    )
    assert make_plan(FLAGS._replace(local_device_ids=(2, 3)), {}).local_device_ids == (2, 3)
    assert make_plan(Given(local_device_ids=(0,)), SLURM).local_device_ids == (0,)


def test_slurm():
    assert make_plan(NOTHING, SLURM) == Plan("Slurm", "gpu007:24567", 6, 5)
    one_each = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x6)", "SLURM_NODEID": "5", "SLURM_LOCALID": "0"}
    assert make_plan(NOTHING, one_each, gpus=8).local_device_ids is None


def test_tasks_of_one_node_share_the_gpus_that_all_of_them_see():
    assert make_plan(NOTHING, SLURM, gpus=8).local_device_ids == (4, 5, 6, 7)  # the second of two tasks
    assert make_plan(NOTHING, SLURM, gpus=2).local_device_ids == (1,)
    assert make_plan(NOTHING, SLURM, gpus=1).local_device_ids is None  # --gpus-per-task=1 shows each its own
    with pytest.raises(UsageError, match="2 tasks on this node, which see 3 GPUs each; give each its own"):
        make_plan(NOTHING, SLURM, gpus=3)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("a1,b2", "a1"),
        ("gpu[007-009,12],login", "gpu007"),
        ("n[3,5-6]", "n3"),
        ("r[1-2]n[03-04].cluster", "r1n03.cluster"),
    ],
)
def test_first_host_of_a_node_list(nodes, first):
    assert first_host(nodes) == first


def test_jobset():
    assert make_plan(NOTHING, JOBSET) == Plan("JobSet", "spade-slice-0-0.spade:8476", 8, 6)
    single = {"JOB_INDEX": "0", "JOB_COMPLETION_INDEX": "0", "JOBSET_JOBS": "1", "JOBSET_PODS_PER_JOB": "1"}
    assert make_plan(NOTHING, JOBSET | single) is None


def test_tpu_hosts():
    slices = {"TPU_WORKER_HOSTNAMES": "t0,t1", "TPU_WORKER_ID": "1"}
    assert make_plan(NOTHING, slices | JOBSET) == Plan("TPU")  # before the JobSet that they are in
    assert make_plan(NOTHING, {}, tpu_chips=True) == Plan("TPU")
    assert make_plan(NOTHING, {"TPU_WORKER_HOSTNAMES": "localhost"}, tpu_chips=True) is None
    two_slices = {"TPU_WORKER_HOSTNAMES": "t0", "MEGASCALE_NUM_SLICES": "2"}
    assert make_plan(NOTHING, two_slices, tpu_chips=True) == Plan("TPU")
    assert make_plan(NOTHING, {"TPU_SKIP_MDS_QUERY": "1"}, tpu_chips=True) is None
    assert make_plan(NOTHING, {"JAX_PLATFORMS": "cpu"}, tpu_chips=True) is None


@pytest.mark.parametrize(
    ("given", "environ", "message"),
    [
        (Given("on"), {}, "nothing says which processes belong together; give --coordinator"),
        (Given("on"), {"SLURM_JOB_ID": "1"}, "belong together; start it with srun, or give"),
        (Given("off", process_id=1), {}, "--distributed=off goes without --process_id"),
        (Given("off", local_device_ids=(0,)), {}, "--distributed=off goes without --local_device_ids"),
        (Given(num_processes=2), {}, "--num_processes needs --coordinator as well"),
        (Given("auto", "h:1", 2), {}, "--coordinator needs --process_id as well"),
        (Given("auto", "h:1", 2, 2), {}, "--process_id=2 is not below --num_processes=2"),
        (Given("auto", "h", 2, 0), {}, "--coordinator=h has no port"),
        (Given(local_device_ids=(0,)), {}, "--local_device_ids is for several processes"),
        (NOTHING, {"SLURM_STEP_NUM_TASKS": "2"}, "not that of a task of srun"),
        (NOTHING, SLURM | {"SLURM_STEP_TASKS_PER_NODE": "?"}, "not that of a task of srun"),
        (NOTHING, JOBSET | {"JOB_INDEX": ""}, "JOBSET_NAME is set, but JOB_INDEX='' .* launch/gke_jobset.yaml"),
        (NOTHING, JOBSET | {"JOBSET_JOBS": "x"}, "JOBSET_JOBS='x'"),
        (NOTHING, JOBSET | {"JOB_INDEX": "2"}, "pod 2 of job 2 is beyond JOBSET_JOBS=2"),
    ],
)
def test_mistakes_are_named(given, environ, message):
    with pytest.raises(UsageError, match=message):
        make_plan(given, environ)


PLAN = Plan("Slurm", "h:1", 4, 2)


def test_the_devices_one_would_expect():
    check_devices(PLAN, Seen("gpu", 4, 2, 8, 32), gpus=8, asked_for="")
    check_devices(PLAN, Seen("cpu", 4, 2, 1, 4), gpus=8, asked_for="cpu")
    check_devices(Plan("TPU"), Seen("tpu", 16, 2, 4, 64), gpus=0, asked_for="")
    check_devices(PLAN._replace(local_device_ids=(2, 3)), Seen("gpu", 4, 2, 2, 8), gpus=8, asked_for="")


@pytest.mark.parametrize(
    ("plan", "seen", "gpus", "message"),
    [
        (PLAN, Seen("cpu", 4, 2, 1, 4), 8, r"process 2 of 4 \(Slurm\) sees no GPU though the machine has 8; install"),
        (PLAN, Seen("gpu", 4, 2, 8, 28), 8, "sees 8 of 28 devices, so that another process sees more or fewer"),
        (PLAN, Seen("tpu", 2, 1, 4, 8), 0, "was to be one of 4"),
        (PLAN._replace(local_device_ids=(2, 3)), Seen("gpu", 4, 2, 8, 32), 8, "was to use devices 2,3 but sees 8"),
    ],
)
def test_the_wrong_devices(plan, seen, gpus, message):
    with pytest.raises(UsageError, match=message):
        check_devices(plan, seen, gpus=gpus, asked_for="")


@pytest.mark.parametrize(
    ("named", "count"), [("0,1,3", 3), ("", 0), ("-1", 0), ("NoDevFiles", 0), ("GPU-1a, GPU-2b", 2), ("0,-1,1", 1)]
)
def test_gpus_are_counted_as_cuda_does(named, count):
    assert distributed._visible_gpus({"CUDA_VISIBLE_DEVICES": named}) == count


def test_nobody_listens():
    with socket.socket() as s:  # bound, so that nobody else takes it, and deaf
        s.bind(("127.0.0.1", 0))
        plan = Plan("flags", f"127.0.0.1:{s.getsockname()[1]}", 2, 1)
        with pytest.raises(RunError, match=r"process 1 of 2 \(flags\) cannot reach process 0 at 127.0.0.1:\d+ \("):
            distributed._wait_for(plan, deadline=0.0)


_WORKER = """
from spade_jax.runtime import app, distributed
def main(argv):
    distributed.join(distributed.read_plan())
    import jax
    from jax.experimental import multihost_utils
    total = int(multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1])).sum())
    print(f"sum of both: {total}.", flush=True)
distributed.define_flags()
app.run(main)
"""


def start(*flags: str, worker: str = _WORKER, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", worker, *flags],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "2"} | environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.mark.slow
@pytest.mark.parametrize("source", ["flags", "Slurm"])
def test_two_processes_meet(source, tmp_path):
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    port = free_port()
    processes = []
    for i in range(2):
        if source == "flags":
            mine = (f"--coordinator=127.0.0.1:{port}", "--num_processes=2", f"--process_id={i}")
            processes.append(start(*mine, **cache))
        else:
            # The port is 20000 and the job's last four digits; a clash would need another run of this very test.
            job = {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_JOB_ID": str(port)}
            me = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": str(i), "SLURM_LOCALID": str(i), "SLURM_NODEID": "0"}
            processes.append(start(**job, **me, **cache))
    for i, process in enumerate(processes):
        output, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors
        # JAX's transport says more from threads of its own, so that only what is written at once is sure to stay whole.
        assert f"process {i} of 2 ({source}): 2 of 4 cpu devices" in output and "sum of both: 3." in output
    assert not any(tmp_path.iterdir())  # of several processes on CPUs the compilation cache makes a mess


@pytest.mark.slow
def test_flags_of_the_wrong_kind_end_with_one_sentence():
    process = start("--local_device_ids=0,x", "--coordinator=h:1", "--num_processes=2", "--process_id=0")
    assert process.communicate(timeout=300)[1] == "error: --local_device_ids=0,x are not numbers; give e.g. 0,1\n"
    assert process.returncode == 2


def test_errors_of_lost_peers_are_told_apart(monkeypatch):
    lost = ValueError("UNKNOWN: Gloo AllGather failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:24464")
    assert not distributed.joined() and not distributed.peer_is_gone(lost)  # nobody was met
    monkeypatch.setattr(distributed, "joined", lambda: True)
    assert distributed.peer_is_gone(lost) and not distributed.peer_is_gone(ValueError("shapes (3,) and (4,)"))


_LONELY = """
import sys
from spade_jax.runtime import app, distributed, errors
def main(argv):
    distributed.join(distributed.read_plan())
    from spade_jax.runtime import hosts
    if not hosts.is_first():
        {failure}
    hosts.gather("what the other one never sends")
distributed.define_flags()
app.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("failure", "code", "said"),
    [
        ("raise errors.RunError('no room here')", 1, "error: no room here\n"),
        ("raise KeyError('a bug')", 1, "KeyError: 'a bug'\n"),
    ],
)
def test_an_error_of_one_ends_all_at_once(failure, code, said):
    port = free_port()
    flags = [f"--coordinator=127.0.0.1:{port}", "--num_processes=2"]
    worker = _LONELY.format(failure=failure)
    first, second = (start(*flags, f"--process_id={i}", worker=worker) for i in range(2))
    errors = second.communicate(timeout=300)[1]
    assert second.returncode == code and errors.endswith(said)
    # Without waiting for heartbeats, or for the other one to say goodbye.
    errors = first.communicate(timeout=60)[1]
    assert first.returncode == 1 and "error: another process of this run has ended" in errors
