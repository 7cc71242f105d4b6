"""Landlock: no file by any path, no TCP, no signals or abstract sockets to the outside.

Imports are frozen, so that a child needs no path at all. Landlock alone does not
stop UDP, nor stat, chmod and utime of files.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import struct

from spade_jax.sandbox.layers.base import PR_SET_NO_NEW_PRIVS, Context, Layer, check, libc, prctl

# linux/landlock.h; system calls from 424 on have the same number on every architecture.
_CREATE_RULESET, _RESTRICT_SELF = 444, 446
_VERSION = 1  # flag: return the ABI instead of a ruleset
_NET_TCP = 0b11  # bind and connect, from ABI 4
_SCOPES = 0b11  # abstract unix sockets and signals, from ABI 6


def _abi() -> int:
    return check(libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _VERSION))


def _attributes(abi: int) -> bytes:
    """struct landlock_ruleset_attr: everything that this ABI can handle."""
    # ABI 1 has 13 rights; 2 adds refer, 3 truncate, 5 ioctl on devices.
    rights = 13 + (abi >= 2) + (abi >= 3) + (abi >= 5)
    fields = [(1 << rights) - 1]
    if abi >= 4:
        fields.append(_NET_TCP)
    if abi >= 6:
        fields.append(_SCOPES)
    return struct.pack(f"={len(fields)}Q", *fields)


def _apply(context: Context) -> None:
    prctl(PR_SET_NO_NEW_PRIVS, 1)  # without it, only root may
    attributes = _attributes(_abi())
    ruleset = check(libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0))
    try:
        check(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _probe(context: Context) -> str:
    abi = _abi()
    with contextlib.suppress(PermissionError):
        os.listdir("/")
        return "a directory was listed"
    if abi >= 4:
        with socket.socket() as sock, contextlib.suppress(PermissionError):
            code = sock.connect_ex(("127.0.0.1", 9))
            if code != 13:  # EACCES; any other answer went past the filter
                return "a TCP connection was tried"
    if abi >= 6:
        with contextlib.suppress(PermissionError):
            os.kill(context.server_pid, 0)
            return "the fork server can be signalled"
    return ""


LANDLOCK = Layer(
    "landlock",
    _apply,
    _probe,
    "it needs Linux 5.13 or later with CONFIG_SECURITY_LANDLOCK and landlock in the boot parameter lsm=, and a "
    "container profile that allows landlock_create_ruleset (Docker 20.10.10 or later)",
    masks=True,
)
