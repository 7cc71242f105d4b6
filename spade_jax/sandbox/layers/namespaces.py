"""Namespaces: the fork server's own view of users, files, processes and network, entered once.

Inside there is an empty read-only root of one directory, a network without
interfaces that are up, and no process but the server's children, to whom it is
process 1. Nothing has to be readable, since imports are frozen by then.

A namespace of processes takes effect on the next fork, so the server becomes
two: the outer process, which the trainer started, only waits for the inner one,
which serves. A process that fails half-way is of no use; so `trial` enters in a
process made for it first, and a failure of the real entry ends the server.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket

from spade_jax.sandbox.layers.base import PR_SET_PDEATHSIG, Context, Layer, check, libc, prctl

# linux/sched.h
_NEW_MOUNTS, _NEW_UTS, _NEW_IPC, _NEW_USER, _NEW_PIDS, _NEW_NET = (
    0x00020000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000,
)  # fmt: skip
# linux/mount.h
_READ_ONLY, _NO_SUID, _NO_DEVICES, _NO_EXEC = 1, 2, 4, 8
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 32, 4096, 16384, 1 << 18
_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

# What the new root is mounted over. Any directory would do; nothing reads this one any more.
_MOUNT_POINT = b"/proc"
_HOST_NAME = b"sandbox"
_PARENT_MILLISECONDS = 1000


def _maps() -> tuple[str, str]:
    """The maps of user and group ids for the new namespace: each id is itself.

    Root passes on all that it has, since children take ids of their own; others may only pass on their own.
    """
    if os.geteuid() != 0:
        return f"{os.geteuid()} {os.geteuid()} 1", f"{os.getegid()} {os.getegid()} 1"
    found = []
    for kind in ("uid", "gid"):
        with open(f"/proc/self/{kind}_map") as file:
            ranges = [line.split() for line in file]
        found.append("\n".join(f"{first} {first} {count}" for first, _, count in ranges))
    return found[0], found[1]


def _write_maps(pid: int, maps: tuple[str, str], privileged: bool) -> None:
    if not privileged:  # the kernel's condition for a group map without privileges
        with open(f"/proc/{pid}/setgroups", "w") as file:
            file.write("deny")
    for kind, text in zip(("uid", "gid"), maps, strict=True):
        with open(f"/proc/{pid}/{kind}_map", "w") as file:
            file.write(text)


def _unshare() -> None:
    """Leaves all namespaces for new ones. A helper that stays behind has the right to write the id maps."""
    maps, privileged, parent = _maps(), os.geteuid() == 0, os.getpid()
    go_read, go_write = os.pipe()
    helper = os.fork()
    if helper == 0:
        code = 1
        try:
            os.close(go_write)
            if os.read(go_read, 1):
                _write_maps(parent, maps, privileged)
                code = 0
        except OSError as error:
            code = error.errno or 1
        finally:
            os._exit(code)
    os.close(go_read)
    failure: OSError | None = None
    try:
        check(libc.unshare(_NEW_USER | _NEW_MOUNTS | _NEW_PIDS | _NEW_NET | _NEW_IPC | _NEW_UTS))
        os.write(go_write, b"1")
    except OSError as error:
        failure = error
    os.close(go_write)
    _, status = os.waitpid(helper, 0)
    if failure is not None:
        raise OSError(failure.errno, f"unshare: {failure.strerror}")
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, f"id maps: {os.strerror(code)}")


def _empty_root() -> None:
    """An empty read-only file system becomes the root."""

    def mount(target: bytes, kind: bytes | None, flags: int, data: bytes | None = None) -> None:
        check(libc.mount(b"sandbox", target, kind, ctypes.c_ulong(flags), data))

    bare = _NO_SUID | _NO_DEVICES | _NO_EXEC
    mount(b"/", None, _RECURSIVE | _PRIVATE)
    mount(_MOUNT_POINT, b"tmpfs", bare, b"size=64k,nr_inodes=2,mode=555")
    os.chdir(_MOUNT_POINT)
    check(libc.syscall(_PIVOT_ROOT[os.uname().machine], b".", b"."))
    check(libc.umount2(b".", _DETACH))
    os.chdir("/")
    mount(b"/", None, _REMOUNT | _BIND | _READ_ONLY | bare)


def _enter() -> None:
    _unshare()
    _empty_root()
    check(libc.sethostname(_HOST_NAME, ctypes.c_size_t(len(_HOST_NAME))))


def trial() -> str:
    """Enters in a process made for it; what went wrong, "" if nothing did."""
    if os.uname().machine not in _PIVOT_ROOT:
        return f"not written for {os.uname().machine}"
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _enter()
            inner = os.fork()
            if inner == 0:
                os._exit(0)
            os.waitpid(inner, 0)
            os.write(writer, b"entered")
        except OSError as error:
            os.write(writer, (error.strerror or str(error)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        # By somebody, or by a machine out of memory: which says nothing of the layer. The pool starts another.
        raise SystemExit("killed while it tried the namespaces")
    return "" if said == "entered" else said or "the trial process died"


def enter(control: socket.socket, trainer_pid: int) -> int:
    """Returns in the inner process only, with a descriptor that becomes readable when the outer one ends.

    Raises OSError half-way, after which the process must exit.
    """
    _enter()
    leash, held = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # stopped or hung it would not look at its leash
        return leash
    code = 1
    try:
        os.close(leash)
        control.close()
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        # `held` closes with this process, however it ends; so all ends with the trainer.
        while not poll.poll(_PARENT_MILLISECONDS):
            if os.getppid() != trainer_pid:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        if ended.si_code != os.CLD_EXITED:  # so that the trainer learns how it ended
            os.kill(os.getpid(), ended.si_status)
        code = ended.si_status
    finally:
        os._exit(code)


def _apply(context: Context) -> None:
    """Children are born inside; here is only why they are not."""
    if context.outside:
        raise OSError(1, context.outside)


def _probe(context: Context) -> str:
    if os.listdir("/"):
        return "files are in sight"
    if context.server_pid != 1:
        return "processes of the host are in sight"
    with contextlib.suppress(OSError):
        os.mkdir("/probe")
        return "the root can be written"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        sock.sendto(b"", ("127.0.0.1", 9))
        return "a network is up"
    return ""


NAMESPACES = Layer(
    "namespaces",
    _apply,
    _probe,
    "allow user namespaces: sysctl user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 on Debian, "
    "kernel.apparmor_restrict_unprivileged_userns=0 on Ubuntu; in a container, --security-opt seccomp=unconfined or a "
    "profile that allows unshare, mount and pivot_root",
)
