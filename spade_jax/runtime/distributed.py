"""Several processes as one program: which of them this one is, read from flags or from the scheduler.

`--distributed=auto` (the default) joins the others under Slurm's srun, in a Kubernetes JobSet made from
`launch/gke_jobset.yaml` and on TPU hosts, and is one process by itself anywhere else.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import flags

from spade_jax.runtime.errors import RunError, UsageError

_CONNECT_SECS = 300.0
_JOBSET_PORT = 8476
_JOBSET_VARIABLES = ("REPLICATED_JOB_NAME", "JOB_INDEX", "JOB_COMPLETION_INDEX", "JOBSET_JOBS", "JOBSET_PODS_PER_JOB")
_FLAGS = ("coordinator", "num_processes", "process_id")


class Given(NamedTuple):
    """The start-up flags; None where not given."""

    distributed: str = "auto"
    coordinator: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: tuple[int, ...] | None = None


class Plan(NamedTuple):
    """How this process joins the others.

    Attributes:
      source: who said so, for messages.
      coordinator: address of process 0, "host:port"; None where JAX asks the TPU's metadata server for everything.
      num_processes: in all; 0 where the coordinator is None.
      process_id: this one's, from 0.
      local_device_ids: which of the devices that this process can see are its own; None: all.
    """

    source: str
    coordinator: str | None = None
    num_processes: int = 0
    process_id: int = 0
    local_device_ids: tuple[int, ...] | None = None


class Seen(NamedTuple):
    """What JAX shows once the processes have met.

    Attributes:
      platform: cpu, gpu or tpu.
      processes: in all.
      process_id: this one's.
      local_devices: of this process.
      devices: of all processes.
    """

    platform: str
    processes: int
    process_id: int
    local_devices: int
    devices: int


def define_flags() -> None:
    """Defines the start-up flags; call once, before they are parsed."""
    flags.DEFINE_enum("distributed", "auto", ("auto", "on", "off"), "Whether other processes belong to this run.")
    flags.DEFINE_string("coordinator", None, "Address of process 0 as host:port.")
    flags.DEFINE_integer("num_processes", None, "Processes of this run.", lower_bound=1)
    flags.DEFINE_integer("process_id", None, "Which of them this is, from 0.", lower_bound=0)
    flags.DEFINE_list("local_device_ids", None, "Which of this machine's GPUs are this process's, e.g. 0,1.")


def read_plan() -> Plan | None:
    """The plan that flags and environment make; None for a single process.

    Raises:
      UsageError: see `make_plan`.
    """
    return make_plan(_given(), os.environ, gpus=_visible_gpus(os.environ), tpu_chips=_tpu_chips())


def join(plan: Plan | None) -> None:
    """Joins the other processes, if there are any; call after the sandbox has forked and before JAX has a device.

    Raises:
      UsageError: the devices are not those that one would expect.
      RunError: process 0 cannot be reached.
    """
    if plan is None:
        return
    import jax  # here, so that flags and plans need no JAX

    if plan.coordinator is None:
        try:
            jax.distributed.initialize()
        except Exception as error:  # noqa: BLE001 (whatever JAX makes of a metadata server that does not answer)
            raise RunError(
                f"the TPU's metadata server does not say which processes belong together ({error}); pass "
                "--distributed=off for one host, or --coordinator, --num_processes and --process_id"
            ) from error
    else:
        who = f"process {plan.process_id} of {plan.num_processes} ({plan.source})"
        print(f"{who}: meeting the others at {plan.coordinator}", flush=True)
        if plan.process_id:
            # JAX ends a process that waits in vain with a native stack trace instead of an error.
            _wait_for(plan, time.monotonic() + _CONNECT_SECS)
        jax.distributed.initialize(
            plan.coordinator, plan.num_processes, plan.process_id, plan.local_device_ids, "deactivate"
        )
    seen = Seen(
        jax.default_backend(),
        jax.process_count(),
        jax.process_index(),
        jax.local_device_count(),
        jax.device_count(),
    )
    check_devices(plan, seen, gpus=_visible_gpus(os.environ), asked_for=os.environ.get("JAX_PLATFORMS", ""))
    if seen.platform == "cpu" and seen.processes > 1:
        # What XLA's programs for CPUs know of the order of their collectives does not survive the compilation cache:
        # a second start would end in Gloo's "distributed collective mismatch".
        jax.config.update("jax_enable_compilation_cache", False)
    print(
        f"process {seen.process_id} of {seen.processes} ({plan.source}): {seen.local_devices} of {seen.devices} "
        f"{seen.platform} devices",
        flush=True,
    )


def joined() -> bool:
    """Whether this process has joined others."""
    library = getattr(sys.modules.get("jax"), "distributed", None)  # which need not be there, or not quite yet
    return library is not None and library.is_initialized()


def peer_is_gone(error: BaseException) -> bool:
    """Whether an error says that a process that this one has joined no longer answers."""
    said = r"Gloo|coordination service|heartbeat|Connection closed by peer"
    return joined() and re.search(said, str(error)) is not None


def _given() -> Given:
    values = {name: flags.FLAGS[name].value for name in Given._fields}
    if values["local_device_ids"] is not None:
        try:
            values["local_device_ids"] = tuple(int(number) for number in values["local_device_ids"])
        except ValueError as error:
            shown = ",".join(values["local_device_ids"])
            raise UsageError(f"--local_device_ids={shown} are not numbers; give e.g. 0,1") from error
    return Given(**values)


# ---------------------------------------------------------------------------
# Who is who
# ---------------------------------------------------------------------------


def make_plan(given: Given, environ: Mapping[str, str], *, gpus: int = 0, tpu_chips: bool = False) -> Plan | None:
    """Decides whether and how this process joins others.

    Args:
      given: the flags.
      environ: the environment.
      gpus: how many this process may use.
      tpu_chips: whether this machine has any.

    Returns:
      The plan; None for a single process.

    Raises:
      UsageError: flags that contradict each other, or an environment that lacks something.
    """
    explicit = {name: value for name in _FLAGS if (value := getattr(given, name)) is not None}
    if given.distributed == "off":
        if explicit or given.local_device_ids is not None:
            name = next(iter(explicit), "local_device_ids")
            raise UsageError(f"--distributed=off goes without --{name}; leave one of them out")
        return None
    if explicit:
        plan = _from_flags(given, explicit)
    elif _is_tpu(environ, tpu_chips):
        plan = Plan("TPU")
    elif "SLURM_STEP_NUM_TASKS" in environ:  # srun sets it; in an sbatch script by itself there is but one process
        plan = _from_slurm(environ, gpus)
    elif "JOBSET_NAME" in environ:
        plan = _from_jobset(environ)
    else:
        plan = None
    if plan is not None and plan.num_processes == 1:
        plan = None
    if plan is None:
        if given.distributed == "on" and not explicit:
            hint = "start it with srun, or " if "SLURM_JOB_ID" in environ else ""
            raise UsageError(
                f"--distributed=on, but nothing says which processes belong together; {hint}give --coordinator, "
                "--num_processes and --process_id"
            )
        if given.local_device_ids is not None:
            raise UsageError("--local_device_ids is for several processes; one by itself heeds CUDA_VISIBLE_DEVICES")
        return None
    return plan if given.local_device_ids is None else plan._replace(local_device_ids=given.local_device_ids)


def _from_flags(given: Given, explicit: Mapping[str, Any]) -> Plan:
    missing = [name for name in _FLAGS if name not in explicit]
    if missing:
        raise UsageError(
            f"--{next(iter(explicit))} needs --{missing[0]} as well; give --{', --'.join(_FLAGS)} together"
        )
    if given.process_id >= given.num_processes:
        raise UsageError(
            f"--process_id={given.process_id} is not below --num_processes={given.num_processes}; count from 0"
        )
    if not re.fullmatch(r".+:\d+", given.coordinator):
        raise UsageError(f"--coordinator={given.coordinator} has no port; give host:port, the same for every process")
    return Plan("flags", given.coordinator, given.num_processes, given.process_id)


def _is_tpu(environ: Mapping[str, str], tpu_chips: bool) -> bool:
    """Whether JAX can find the TPU hosts of this run; one Kubernetes host by itself has none to find."""
    if "tpu" not in environ.get("JAX_PLATFORMS", "tpu"):
        return False
    hosts = environ.get("TPU_PROCESS_ADDRESSES", environ.get("TPU_WORKER_HOSTNAMES"))
    if hosts is not None:
        return "," in hosts or int(environ.get("MEGASCALE_NUM_SLICES") or 1) > 1
    return tpu_chips and "TPU_SKIP_MDS_QUERY" not in environ


def _from_slurm(environ: Mapping[str, str], gpus: int) -> Plan:
    try:
        job, tasks, rank, local_rank = (
            int(environ[name]) for name in ("SLURM_JOB_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID")
        )
        nodes, here = environ["SLURM_STEP_NODELIST"], environ["SLURM_STEP_TASKS_PER_NODE"]
        on_this_node = _tasks_per_node(here)[int(environ["SLURM_NODEID"])]
    except (KeyError, ValueError, IndexError) as error:
        raise UsageError(
            f"Slurm's environment is not that of a task of srun ({error}); start it with srun, or pass "
            "--distributed=off"
        ) from error
    # Below the ports that a machine gives to outgoing connections; two jobs that share a node rarely clash.
    coordinator = f"{first_host(nodes)}:{20_000 + job % 10_000}"
    return Plan("Slurm", coordinator, tasks, rank, _share_of_gpus(gpus, on_this_node, local_rank))


def _share_of_gpus(gpus: int, tasks: int, local_rank: int) -> tuple[int, ...] | None:
    """A task's part of the GPUs that it sees, None if it sees only its own (or none)."""
    if tasks == 1 or gpus <= 1:
        return None
    if gpus % tasks:
        raise UsageError(
            f"Slurm started {tasks} tasks on this node, which see {gpus} GPUs each; give each its own with "
            "--gpus-per-task, or start one per node or per GPU"
        )
    own = gpus // tasks
    return tuple(range(local_rank * own, (local_rank + 1) * own))


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list, e.g. "gpu[007-009,12],login1" -> "gpu007"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        raise UsageError(f"SLURM_STEP_NODELIST={nodes!r} names no host; pass --coordinator and the flags beside it")
    return re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", first[0])


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's tasks of every node, e.g. "4(x2),1" -> [4, 4, 1]."""
    counts = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if match is None:
            raise ValueError(f"SLURM_STEP_TASKS_PER_NODE={text}")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _from_jobset(environ: Mapping[str, str]) -> Plan:
    """Pod i of job j of a JobSet has the host name <JobSet>-<replicated job>-j-i, in a domain named as the JobSet."""
    for name in _JOBSET_VARIABLES:
        value = environ.get(name, "")
        if not value or (name != "REPLICATED_JOB_NAME" and not value.isdigit()):
            raise UsageError(
                f"JOBSET_NAME is set, but {name}={value!r} says nothing; give "
                "the container the variables of launch/gke_jobset.yaml"
            )
    job, pod, jobs, pods = (int(environ[name]) for name in _JOBSET_VARIABLES[1:])
    if job >= jobs or pod >= pods:
        raise UsageError(
            f"pod {pod} of job {job} is beyond JOBSET_JOBS={jobs} and JOBSET_PODS_PER_JOB={pods}; set these to the "
            "replicas and the parallelism of the JobSet"
        )
    name = environ["JOBSET_NAME"]
    coordinator = f"{name}-{environ['REPLICATED_JOB_NAME']}-0-0.{name}:{_JOBSET_PORT}"
    return Plan("JobSet", coordinator, jobs * pods, job * pods + pod)


# ---------------------------------------------------------------------------
# What is there
# ---------------------------------------------------------------------------


def check_devices(plan: Plan, seen: Seen, *, gpus: int, asked_for: str) -> None:
    """Checks that every process has the devices one would expect, before anything is compiled for them.

    Args:
      plan: as carried out.
      seen: what JAX shows.
      gpus: how many GPUs this process may use.
      asked_for: JAX_PLATFORMS, "" where it is not set.

    Raises:
      UsageError: it has not.
    """
    who = f"process {seen.process_id} of {seen.processes} ({plan.source})"
    if plan.num_processes and seen.processes != plan.num_processes:
        raise UsageError(
            f"{who} was to be one of {plan.num_processes}; the devices' own runtime counts hosts, so start one process "
            "on each and pass --distributed=auto"
        )
    if seen.platform == "cpu" and gpus and not asked_for:
        raise UsageError(
            f"{who} sees no GPU though the machine has {gpus}; install JAX for it (pip install 'spade_jax[cuda]'), "
            "look at its driver with nvidia-smi, or set JAX_PLATFORMS=cpu to do without"
        )
    own = plan.local_device_ids
    if own is not None and seen.platform != "cpu" and seen.local_devices != len(own):
        raise UsageError(
            f"{who} was to use devices {','.join(map(str, own))} but sees {seen.local_devices}; "
            "make --local_device_ids, CUDA_VISIBLE_DEVICES and what the scheduler grants agree"
        )
    if seen.local_devices * seen.processes != seen.devices:
        raise UsageError(
            f"{who} sees {seen.local_devices} of {seen.devices} devices, so that another process sees more or fewer; "
            "give all the same number (Slurm: --gpus-per-task or --gpus-per-node)"
        )


def _visible_gpus(environ: Mapping[str, str]) -> int:
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return len(glob.glob("/dev/nvidia[0-9]*"))
    ids = [part.strip() for part in named.split(",")]
    # As CUDA reads it: what follows the first name that is none does not count.
    valid = [i for i, part in enumerate(ids) if not part or part.startswith("-") or part == "NoDevFiles"]
    return valid[0] if valid else len(ids)


def _tpu_chips() -> bool:
    """Whether this machine is a TPU VM: its chips' device files, and the library that drives them."""
    if not (glob.glob("/dev/accel[0-9]*") or glob.glob("/dev/vfio/[0-9]*")):
        return False
    import importlib.util

    return importlib.util.find_spec("libtpu") is not None


def _wait_for(plan: Plan, deadline: float) -> None:
    """Waits until process 0 listens."""
    host, _, port = plan.coordinator.rpartition(":")
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=10.0).close()
            return
        except OSError as error:  # its name may not be known yet either
            if time.monotonic() >= deadline:
                raise RunError(
                    f"process {plan.process_id} of {plan.num_processes} ({plan.source}) cannot reach process 0 at "
                    f"{plan.coordinator} ({error}); see whether that process started, and whether the port is open"
                ) from error
        time.sleep(1.0)
