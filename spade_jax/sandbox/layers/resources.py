"""Resource limits of a child, by setrlimit."""

from __future__ import annotations

import contextlib
import mmap
import os
import resource

from spade_jax.sandbox.layers.base import Context, Layer

_STACK_BYTES = 8 * 2**20


def _apply(context: Context) -> None:
    limits = context.limits
    cpu = int(limits.cpu_seconds)
    # One more than what is asked for is the child itself; but 0, which refuses every
    # fork, holds whatever else the same user runs.
    processes = limits.processes + 1 if limits.processes else 0
    for name, soft, hard in (
        ("AS", context.base_bytes + limits.memory_mb * 2**20, None),
        ("CPU", cpu, cpu + 1),  # SIGXCPU tells why; SIGKILL follows where that is ignored
        ("FSIZE", limits.file_bytes, None),
        ("NOFILE", limits.open_files, None),
        ("NPROC", processes, None),
        ("STACK", _STACK_BYTES, None),
        ("CORE", 0, None),
        ("MEMLOCK", 0, None),
        ("MSGQUEUE", 0, None),
        ("RTPRIO", 0, None),
    ):
        kind = getattr(resource, f"RLIMIT_{name}")
        _, ceiling = resource.getrlimit(kind)
        hard = soft if hard is None else hard
        if ceiling != resource.RLIM_INFINITY:
            soft, hard = min(soft, ceiling), min(hard, ceiling)
        resource.setrlimit(kind, (soft, hard))


def _probe(context: Context) -> str:
    with contextlib.suppress(MemoryError):
        # All of it: what the fork server had mapped when it was measured may in part be free again.
        bytes(context.base_bytes + context.limits.memory_mb * 2**20)
        return "memory beyond the limit was given"
    opened: list[int] = []
    try:
        while len(opened) < context.limits.open_files:
            opened.append(os.dup(0))
        return "descriptors beyond the limit were given"
    except OSError:
        pass
    finally:
        for fd in opened:
            os.close(fd)
    if context.limits.processes == 0:
        try:
            pid = os.fork()
        except OSError:
            return ""
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        return "a fork was not refused; the kernel ignores the limit for root"
    return ""


def address_space_bytes() -> int:
    """Address space that this process maps."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


LIMITS = Layer(
    "limits",
    _apply,
    _probe,
    "run as a user other than root, whom the kernel exempts from the process limit, or with the layer ids or seccomp",
    late=True,
)
