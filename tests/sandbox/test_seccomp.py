"""The system call filter, run by an interpreter of classic BPF: both architectures, every argument filter."""

from __future__ import annotations

import errno
import pathlib
import re
import struct

import pytest

from spade_jax.sandbox.layers import seccomp

ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ME = 4321
EACCES, EPERM, ENOSYS, ENOTTY = errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENOTTY
NUMBERS = {
    "mmap": seccomp._MMAP,
    "mprotect": seccomp._MPROTECT,
    "fcntl": seccomp._FCNTL,
    "ioctl": seccomp._IOCTL,
    "prctl": seccomp._PRCTL,
    "prlimit64": seccomp._PRLIMIT,
    "kill": seccomp._KILL,
    "tgkill": seccomp._TGKILL,
    **seccomp._ALLOWED,
    **seccomp._NO_PATHS,
    **seccomp._REFUSED,
}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """0 for allowed, else the error number; asserts that no other action exists."""
    program = seccomp.build(machine).replace(struct.pack("=I", seccomp.PID_PLACE), struct.pack("=I", ME))
    code = list(struct.iter_unpack("=HBBI", program))
    padded = [value & (2**64 - 1) for value in arguments] + [0] * (6 - len(arguments))
    data = struct.pack("<IIQ6Q", number, architecture or ARCHITECTURE[machine], 0, *padded)
    accumulator = at = 0
    while True:
        operation, if_true, if_false, k = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x06:
            assert k == 0x7FFF0000 or k >> 16 == 0x0005
            return 0 if k == 0x7FFF0000 else k & 0xFFFF
        else:
            truth = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: bool(accumulator & k)}[operation]
            at += if_true if truth else if_false


MACHINES = pytest.mark.parametrize("machine", ["x86_64", "aarch64"])


@MACHINES
def test_plain_calls(machine):
    index = ("x86_64", "aarch64").index(machine)
    for table, expected in ((seccomp._ALLOWED, 0), (seccomp._NO_PATHS, EACCES), (seccomp._REFUSED, EPERM)):
        for name, numbers in table.items():
            if numbers[index] is not None:
                assert verdict(machine, numbers[index]) == expected, name
    named = {numbers[index] for numbers in NUMBERS.values()}
    assert all(verdict(machine, number) == ENOSYS for number in range(1000) if number not in named)
    assert verdict(machine, 435) == ENOSYS  # clone3: libc falls back to clone, which says EPERM


@MACHINES
@pytest.mark.parametrize(
    "name, arguments, expected",
    [
        ("mmap", (0, 4096, 3, 0x22), 0),  # read and write, private and anonymous
        ("mmap", (0, 4096, 0, 0x20022), 0),  # a thread's stack
        ("mmap", (0, 4096, 7, 0x22), EACCES),
        ("mmap", (0, 4096, 5, 0x22), EACCES),
        ("mmap", (0, 4096, 3, 0x21), EACCES),  # shared
        ("mmap", (0, 4096, 3, 0x23), EACCES),  # shared, validated
        ("mmap", (0, 4096, 3, 0x40022), EACCES),  # huge pages
        ("mprotect", (0, 4096, 3), 0),
        ("mprotect", (0, 4096, 4), EACCES),
        ("mprotect", (0, 4096, 2**32 | 7), EACCES),
        ("fcntl", (3, 1), 0),
        ("fcntl", (3, 1030), 0),
        ("fcntl", (3, 4, 0x2000), EPERM),  # F_SETFL, O_ASYNC
        ("fcntl", (3, 8, 1), EPERM),  # F_SETOWN
        ("fcntl", (3, 10, 9), EPERM),  # F_SETSIG
        ("fcntl", (3, 15), EPERM),  # F_SETOWN_EX
        ("ioctl", (0, 0x5451), 0),
        ("ioctl", (0, 0x5401), ENOTTY),
        ("ioctl", (3, 0x5452), ENOTTY),
        ("prctl", (39,), 0),
        ("prctl", (1, 0), EPERM),
        ("prctl", (4, 1), EPERM),
        ("prctl", (22, 2), EPERM),
        ("prlimit64", (0, 7, 0, 4096), 0),
        ("prlimit64", (ME, 7, 0, 4096), 0),
        ("prlimit64", (ME + 1, 7, 0, 4096), EPERM),
        ("prlimit64", (0, 7, 4096, 0), EPERM),
        ("prlimit64", (0, 7, 2**32, 0), EPERM),  # a pointer whose low word is 0
        ("kill", (ME, 9), 0),
        ("kill", (ME + 1, 9), EPERM),
        ("kill", (-1, 9), EPERM),
        ("kill", (0, 9), EPERM),
        ("tgkill", (ME, 1, 6), 0),
        ("tgkill", (1, 1, 6), EPERM),
    ],
)
def test_argument_filters(machine, name, arguments, expected):
    number = NUMBERS[name][machine == "aarch64"]
    assert verdict(machine, number, *arguments) == expected


def test_other_numberings_of_the_same_calls_are_refused():
    """read is 0 in x86_64, x32's is 0x40000000; with the 32-bit architecture 0 is restart_syscall."""
    assert verdict("x86_64", 0) == 0
    assert verdict("x86_64", 0x40000000) == ENOSYS
    assert verdict("x86_64", 0x40000000 | 520) == ENOSYS
    assert verdict("x86_64", 0, architecture=0x40000003) == ENOSYS
    assert verdict("aarch64", 63) == 0
    assert verdict("aarch64", 63, architecture=0x40000028) == ENOSYS


def test_a_machine_without_a_table_is_named():
    with pytest.raises(OSError, match="no filter is written for riscv64, only for x86_64 and aarch64"):
        seccomp.build("riscv64")


def test_jumps_and_length_are_what_the_kernel_accepts():
    for machine in ARCHITECTURE:
        code = list(struct.iter_unpack("=HBBI", seccomp.build(machine)))
        assert len(code) < 4096  # BPF_MAXINSNS
        for at, (operation, if_true, if_false, _) in enumerate(code):
            assert operation in (0x20, 0x54, 0x06) or at + 1 + max(if_true, if_false) < len(code)
        assert code[-1][0] == 0x06
        assert sum(k == seccomp.PID_PLACE for *_, k in code) == 3


@pytest.mark.parametrize(
    "machine, header",
    [("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), ("aarch64", "/usr/include/asm-generic/unistd.h")],
)
def test_numbers_are_those_of_the_kernel_headers(machine, header):
    """Where the headers are installed; elsewhere the numbers are checked against each other."""
    index = ("x86_64", "aarch64").index(machine)
    path = pathlib.Path(header)
    text = path.read_text() if path.exists() else ""
    known = {
        re.sub("^fstatat$", "newfstatat", name): int(number)
        for name, number in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)
    }
    found = [(name, numbers[index]) for name, numbers in NUMBERS.items() if numbers[index] is not None]
    assert len({number for _, number in found}) == len(found)
    for name, number in found:
        assert known.get(name, number) == number, name
