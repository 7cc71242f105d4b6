"""seccomp: an allow-list of system calls, as a filter in classic BPF.

What is allowed is what a Python program needs once its imports are frozen:
reading and writing open descriptors, memory that is private and never
executable, time, random bytes, signals to itself, and exit. Nothing takes a
path. All else fails with an error number, never by a kill, since a library may
try what it can do without:

    EACCES  path calls (so that a failed import is ModuleNotFoundError), executable or shared memory
    EPERM   sockets, new processes, tracing, signals to others, changes of limits
    ENOSYS  whatever is not listed, clone3 (so that libc falls back to clone), other architectures
    ENOTTY  device controls
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterable

from spade_jax.sandbox.layers.base import PR_SET_NO_NEW_PRIVS, Context, Layer, prctl

# System call numbers: (x86_64, aarch64), None where the architecture has no such call.
_ALLOWED = {
    "read": (0, 63),
    "write": (1, 64),
    "close": (3, 57),
    "fstat": (5, 80),
    "lseek": (8, 62),
    "munmap": (11, 215),
    "brk": (12, 214),
    "mremap": (25, 216),
    "madvise": (28, 233),
    "futex": (202, 98),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "restart_syscall": (219, 128),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "getrandom": (318, 278),
    "getpid": (39, 172),
    "gettid": (186, 178),
    "getppid": (110, 173),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getrusage": (98, 165),
    "times": (100, 153),
    "sched_yield": (24, 124),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "capget": (125, 90),
    "exit": (60, 93),
    "exit_group": (231, 94),
}
_NO_PATHS = {
    "open": (2, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "creat": (85, None),
    "stat": (4, None),
    "lstat": (6, None),
    "newfstatat": (262, 79),  # fstat in some versions of libc: its path cannot be seen from here
    "statx": (332, 291),
    "statfs": (137, 43),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "getcwd": (79, 17),
    "chdir": (80, 49),
    "mkdir": (83, None),
    "mkdirat": (258, 34),
    "rmdir": (84, None),
    "rename": (82, None),
    "renameat": (264, 38),
    "renameat2": (316, 276),
    "link": (86, None),
    "linkat": (265, 37),
    "symlink": (88, None),
    "symlinkat": (266, 36),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "truncate": (76, 45),
    "chmod": (90, None),
    "fchmodat": (268, 53),
    "chown": (92, None),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "utime": (132, None),
    "utimes": (235, None),
    "utimensat": (280, 88),
    "mknod": (133, None),
    "mknodat": (259, 33),
}
_REFUSED = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "clone": (56, 220),
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "unshare": (272, 97),
    "mount": (165, 40),
    "chroot": (161, 51),
}
_MMAP, _MPROTECT = (9, 222), (10, 226)
_FCNTL, _IOCTL, _PRCTL, _PRLIMIT = (72, 25), (16, 29), (157, 167), (302, 261)
_KILL, _TGKILL = (62, 129), (234, 131)

# machine -> (index into the pairs above, AUDIT_ARCH_* of linux/audit.h)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000  # x86_64's second numbering of the same calls

# linux/seccomp.h and linux/prctl.h
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
_RET_ALLOW, _RET_ERRNO = 0x7FFF0000, 0x00050000
# linux/bpf_common.h: load a word, jump if equal, greater or equal, any bit set; and; return
_LOAD, _JEQ, _JGE, _JSET, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
# struct seccomp_data: number, architecture, instruction pointer, six arguments of 64 bits, little-endian
_NUMBER_AT, _ARCHITECTURE_AT, _ARGUMENTS_AT = 0, 4, 16

_PROT_EXEC, _MAP_PRIVATE, _MAP_TYPE, _MAP_HUGETLB = 4, 2, 0x0F, 0x40000
_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC = 0, 1, 2, 3, 1030
_FIONCLEX, _FIOCLEX = 0x5450, 0x5451
_PR_READS = (2, 3, 21, 39)  # PR_GET_ PDEATHSIG, DUMPABLE, SECCOMP, NO_NEW_PRIVS

# Stands for the child's process id until the filter is installed.
PID_PLACE = 0x5ADE5ADE

_Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, operand


def _load(argument: int, high: bool = False) -> _Instruction:
    return (_LOAD, 0, 0, _ARGUMENTS_AT + 8 * argument + 4 * high)


def _return(code: int) -> _Instruction:
    return (_RETURN, 0, 0, _RET_ERRNO | code if code else _RET_ALLOW)


def _one_of(argument: int, values: Iterable[int], otherwise: int) -> list[_Instruction]:
    """Allows a call whose argument (an int, so its low word) is among `values`."""
    block = [_load(argument)]
    for value in values:
        block += [(_JEQ, 0, 1, value), _return(0)]
    return [*block, _return(otherwise)]


def _memory(protection: int, flags: int | None) -> list[_Instruction]:
    """Never executable; a mapping must be private, and of ordinary pages, which are those that are counted."""
    refuse = _return(errno.EACCES)
    block = [_load(protection), (_JSET, 0, 1, _PROT_EXEC), refuse]
    if flags is not None:
        block += [_load(flags), (_JSET, 0, 1, _MAP_HUGETLB), refuse]
        block += [(_AND, 0, 0, _MAP_TYPE), (_JEQ, 1, 0, _MAP_PRIVATE), refuse]
    return [*block, _return(0)]


def _limit_reads() -> list[_Instruction]:
    """prlimit64 on oneself, with no new limit."""
    refuse = _return(errno.EPERM)
    block = [_load(0), (_JEQ, 2, 0, 0), (_JEQ, 1, 0, PID_PLACE), refuse]
    for high in (False, True):
        block += [_load(2, high), (_JEQ, 1, 0, 0), refuse]
    return [*block, _return(0)]


def build(machine: str) -> bytes:
    """The filter as an array of struct sock_filter, with PID_PLACE in it.

    Raises OSError for a machine whose calls are not listed.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no filter is written for {machine}, only for {' and '.join(_ARCHITECTURES)}")
    index, architecture = _ARCHITECTURES[machine]
    unknown = _return(errno.ENOSYS)
    program: list[_Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE_AT),
        (_JEQ, 1, 0, architecture),
        unknown,
        (_LOAD, 0, 0, _NUMBER_AT),
        (_JGE, 0, 1, _X32_BIT),
        unknown,
    ]
    blocks: list[tuple[tuple[int, int | None], list[_Instruction]]] = []
    for table, code in ((_ALLOWED, 0), (_NO_PATHS, errno.EACCES), (_REFUSED, errno.EPERM)):
        blocks += [(numbers, [_return(code)]) for numbers in table.values()]
    blocks += [
        (_MMAP, _memory(2, flags=3)),
        (_MPROTECT, _memory(2, flags=None)),
        (_FCNTL, _one_of(1, (_F_DUPFD, _F_GETFD, _F_SETFD, _F_GETFL, _F_DUPFD_CLOEXEC), errno.EPERM)),
        (_IOCTL, _one_of(1, (_FIONCLEX, _FIOCLEX), errno.ENOTTY)),
        (_PRCTL, _one_of(0, _PR_READS, errno.EPERM)),
        (_PRLIMIT, _limit_reads()),
        (_KILL, _one_of(0, (PID_PLACE,), errno.EPERM)),
        (_TGKILL, _one_of(0, (PID_PLACE,), errno.EPERM)),
    ]
    for numbers, block in blocks:
        if (number := numbers[index]) is not None:
            program += [(_JEQ, 0, len(block), number), *block]
    program.append(unknown)
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


class _Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


# Built once in the fork server: in each child it would cost a tenth of the fork.
_TEMPLATE = build(os.uname().machine) if os.uname().machine in _ARCHITECTURES else b""


def _apply(context: Context) -> None:
    filled = (_TEMPLATE or build(os.uname().machine)).replace(
        struct.pack("=I", PID_PLACE), struct.pack("=I", os.getpid())
    )
    program = _Program(len(filled) // 8, filled)
    prctl(PR_SET_NO_NEW_PRIVS, 1)  # without it, only root may
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program))


def _probe(context: Context) -> str:
    def mapped(flags: int, prot: int) -> None:
        mmap.mmap(-1, mmap.PAGESIZE, flags=flags | mmap.MAP_ANONYMOUS, prot=prot).close()

    attempts: dict[str, Callable[[], object]] = {
        "a file": lambda: os.open("/", os.O_RDONLY),
        "a look at a path": lambda: os.stat("/"),
        "a socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "a memory file": lambda: os.memfd_create("probe"),
        "a pipe": os.pipe,
        "executable memory": lambda: mapped(mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_EXEC),
        "a signal to the fork server": lambda: os.kill(context.server_pid, 0),
        "new limits": lambda: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
        "an owner for signals of a descriptor": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid()),
        "a program": lambda: os.execv("/", ["/"]),
    }
    for name, attempt in attempts.items():
        try:
            attempt()
        except (OSError, ValueError):
            continue
        return f"{name} was allowed"
    try:
        pid = os.fork()
    except OSError:
        return ""
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return "a fork was allowed"


SECCOMP = Layer(
    "seccomp",
    _apply,
    _probe,
    "it needs Linux on x86_64 or aarch64 with CONFIG_SECCOMP_FILTER, and a container profile that allows prctl with "
    "PR_SET_SECCOMP (Docker's and Podman's do)",
    masks=True,
)
