"""The isolation layers, in the order a child applies them.

A layer has a name, an `apply` that a child runs before any line of the program,
and a `probe` that tries what the layer forbids. At start the fork server runs
every `apply` and then every `probe` in a child made for it (`survey`): a layer
counts as active when its behaviour was seen, not because a version number
promises it. Adding a layer is adding an entry to `LAYERS`.

These layers bound what a program uses. They do not stop a child from reading
what its user may read, from the network, or, where the trainer is not root, from
signalling processes of the same user.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import errno
import json
import mmap
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterable

from spade_jax.sandbox.limits import Limits

CHANNEL = 3  # the descriptor on which a child speaks, whatever it was before

_libc = ctypes.CDLL(None, use_errno=True)

# linux/prctl.h
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4
_PR_SET_NO_NEW_PRIVS, _PR_GET_NO_NEW_PRIVS = 38, 39

# Ids from here up to 2**31 belong to nobody by convention (systemd's "Users,
# Groups, UIDs and GIDs"). Adding the process id gives each child its own: pids
# are below 2**22, and a shared one would let children signal each other.
_FIRST_ID, _PID_MAX = 0x70000000, 2**22
_OVERFLOW_ID = 65534

_STACK_BYTES = 8 * 2**20


@dataclasses.dataclass(frozen=True)
class Context:
    """What a layer needs to know.

    Attributes:
      limits: the program's limits.
      base_bytes: address space of the fork server, inherited by every child.
      max_descriptors: no descriptor of the fork server is this high.
      server_pid: process id of the fork server.
      channel: descriptor to keep; `descriptors` moves it to CHANNEL.
    """

    limits: Limits
    base_bytes: int
    max_descriptors: int
    server_pid: int
    channel: int


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
      name: short, for logs.
      apply: locks the child down; OSError when this machine cannot.
      probe: tries what is forbidden; returns what got through, "" if nothing did.
    """

    name: str
    apply: Callable[[Context], None]
    probe: Callable[[Context], str]


@dataclasses.dataclass(frozen=True)
class LayerStatus:
    """Whether a layer holds on this machine, and if not, what was seen."""

    name: str
    active: bool
    evidence: str = ""


def describe(statuses: Iterable[LayerStatus]) -> str:
    """One line for the log and the gate's reports."""
    return ", ".join(s.name if s.active else f"no {s.name} ({s.evidence})" for s in statuses)


def _prctl(option: int, value: int = 0) -> int:
    result = _libc.prctl(option, value, 0, 0, 0)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


# --- descriptors ---------------------------------------------------------------


def _apply_descriptors(context: Context) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    if context.channel != CHANNEL:
        os.dup2(context.channel, CHANNEL)
    os.set_inheritable(CHANNEL, False)  # a program executed in our place is mute
    os.closerange(CHANNEL + 1, context.max_descriptors)


def _probe_descriptors(context: Context) -> str:
    null = os.stat(os.devnull)
    for fd in range(context.max_descriptors):
        try:
            found = os.fstat(fd)
        except OSError:
            if fd > CHANNEL:
                continue
            return f"descriptor {fd} is closed"
        if fd > CHANNEL or (fd < CHANNEL and found.st_rdev != null.st_rdev):
            return f"descriptor {fd} was inherited"
    return ""


# --- session -------------------------------------------------------------------


def _apply_session(context: Context) -> None:
    os.setsid()
    os.chdir("/")
    os.umask(0o077)
    os.environ.clear()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def _probe_session(context: Context) -> str:
    if os.getsid(0) != os.getpid():
        return "the session is shared"
    kept = [n for n in signal.valid_signals() if signal.getsignal(n) != signal.SIG_DFL]
    return "" if kept == [signal.SIGXFSZ] else f"signals {kept} are not at their defaults"


def default_signals() -> None:
    """Undoes what the trainer's shell and Python have changed.

    The fork server does this once, since sixty calls would be a tenth of a fork.
    SIGPIPE stays ignored in it; SIGXFSZ in children too, so that a file too large
    is an OSError in the program.
    """
    kept = {signal.SIGKILL, signal.SIGSTOP, signal.SIGPIPE, signal.SIGXFSZ}
    for number in signal.valid_signals() - kept:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


# --- limits --------------------------------------------------------------------


def _apply_limits(context: Context) -> None:
    # The machine out of memory should end a program, not the trainer.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
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


def _probe_limits(context: Context) -> str:
    with contextlib.suppress(OSError, ValueError):
        mmap.mmap(-1, (context.limits.memory_mb + 1) * 2**20).close()
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


# --- ids -----------------------------------------------------------------------


def _own_id(map_path: str) -> int:
    """An id for this process alone, inside what the user namespace maps."""
    ranges = []
    with open(map_path) as file:
        for line in file:
            first, _, count = map(int, line.split())
            ranges.append((first, first + count))
    if any(first <= _FIRST_ID and end >= _FIRST_ID + _PID_MAX for first, end in ranges):
        return _FIRST_ID + os.getpid()
    # A rootless container maps few ids: take the upper half of its largest range.
    first, end = max(ranges, key=lambda r: r[1] - r[0])
    end = min(end, _OVERFLOW_ID)
    start = first + (end - first) // 2
    if end - start < 1000:
        raise OSError(errno.EINVAL, f"the user namespace maps only {end - first} ids")
    return start + os.getpid() % (end - start)


def _apply_ids(context: Context) -> None:
    if os.geteuid() != 0:
        raise OSError(errno.EPERM, "not root, so children run as the trainer's user")
    uid, gid = _own_id("/proc/self/uid_map"), _own_id("/proc/self/gid_map")
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _probe_ids(context: Context) -> str:
    if os.getresuid()[0] == 0 or 0 in os.getresgid() or os.getgroups():
        return "an id of root is left"
    for attempt in (lambda: os.setuid(0), lambda: os.kill(context.server_pid, 0)):
        with contextlib.suppress(PermissionError):
            attempt()
            return "the fork server's user is within reach"
    return ""


# --- privileges ----------------------------------------------------------------


def _apply_privileges(context: Context) -> None:
    # After `ids`: a change of user resets both of these.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != context.server_pid:  # it died before it could be told apart
        os._exit(1)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_DUMPABLE, 0)


def _probe_privileges(context: Context) -> str:
    death = ctypes.c_int()
    _libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death))
    if death.value != signal.SIGKILL:
        return "the child would outlive the fork server"
    if _prctl(_PR_GET_NO_NEW_PRIVS) != 1 or _prctl(_PR_GET_DUMPABLE) != 0:
        return "new privileges or tracing are possible"
    return ""


LAYERS = (
    Layer("descriptors", _apply_descriptors, _probe_descriptors),
    Layer("session", _apply_session, _probe_session),
    Layer("limits", _apply_limits, _probe_limits),
    Layer("ids", _apply_ids, _probe_ids),
    Layer("privileges", _apply_privileges, _probe_privileges),
)

ISOLATION = {"limits": LAYERS}


def lock_down(layers: Iterable[Layer], context: Context) -> None:
    """Applies the layers to this process, in order. Raises OSError."""
    for layer in layers:
        layer.apply(context)


def survey(layers: tuple[Layer, ...], context: Context) -> list[LayerStatus]:
    """Tries the layers in a process made for it; one status per layer.

    `context.channel` is replaced by a pipe. A layer that cannot be applied is
    skipped, so that the rest is seen as a child will have it.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            statuses = _survey_here(layers, dataclasses.replace(context, channel=writer))
            os.write(CHANNEL, json.dumps([dataclasses.astuple(s) for s in statuses]).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(pid, 0)
    if not answer:
        return [LayerStatus(layer.name, False, "the probing process died") for layer in layers]
    return [LayerStatus(*status) for status in json.loads(answer)]


def _survey_here(layers: tuple[Layer, ...], context: Context) -> list[LayerStatus]:
    refused: dict[str, str] = {}
    for layer in layers:
        try:
            layer.apply(context)
        except OSError as error:
            refused[layer.name] = error.strerror or str(error)
    statuses = []
    for layer in layers:
        evidence = refused.get(layer.name)
        if evidence is None:
            try:
                evidence = layer.probe(context)
            except Exception as error:  # a probe that breaks has shown nothing
                evidence = f"probe failed: {type(error).__name__}: {error}"
        statuses.append(LayerStatus(layer.name, not evidence, evidence))
    return statuses


def address_space_bytes() -> int:
    """Address space that this process maps."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * mmap.PAGESIZE


def supported() -> str:
    """Why this machine cannot run a pool, "" if it can."""
    if not sys.platform.startswith("linux") or not hasattr(os, "pidfd_open"):
        return f"the sandbox needs Linux 5.4 or later (pidfd_open), this is {sys.platform}"
    return ""
