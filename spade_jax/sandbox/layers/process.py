"""Descriptors, session and privileges: what a child inherits, and what it could become."""

from __future__ import annotations

import ctypes
import os
import signal

from spade_jax.sandbox.layers.base import (
    CHANNEL,
    PR_GET_NO_NEW_PRIVS,
    PR_SET_NO_NEW_PRIVS,
    PR_SET_PDEATHSIG,
    Context,
    Layer,
    check,
    libc,
    prctl,
)

# linux/prctl.h
_PR_GET_PDEATHSIG = 2
_PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 3, 4

_NULL_DEVICE = os.makedev(1, 3)

# linux/capability.h: version 3 takes two words of (effective, permitted, inheritable).
_CAPABILITY_HEADER = (ctypes.c_uint32 * 2)(0x20080522, 0)
_CapabilityData = ctypes.c_uint32 * 6


def _apply_descriptors(context: Context) -> None:
    for fd in range(3):
        os.dup2(context.null, fd)
    if context.channel != CHANNEL:
        os.dup2(context.channel, CHANNEL)
    os.set_inheritable(CHANNEL, False)  # a program executed in our place is mute
    os.closerange(CHANNEL + 1, context.max_descriptors)


def _probe_descriptors(context: Context) -> str:
    for fd in range(context.max_descriptors):
        try:
            found = os.fstat(fd)
        except OSError:
            if fd > CHANNEL:
                continue
            return f"descriptor {fd} is closed"
        if fd > CHANNEL or (fd < CHANNEL and found.st_rdev != _NULL_DEVICE):
            return f"descriptor {fd} was inherited"
    return ""


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


def _apply_privileges(context: Context) -> None:
    # After `ids`: a change of user resets the signal and the flag.
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != context.server_pid:  # it died before it could be told apart
        os._exit(1)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    # A root that could not change its user, or one inside a user namespace, has capabilities left.
    check(libc.capset(_CAPABILITY_HEADER, _CapabilityData()))
    prctl(_PR_SET_DUMPABLE, 0)


def _probe_privileges(context: Context) -> str:
    death = ctypes.c_int()
    libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(death))
    if death.value != signal.SIGKILL:
        return "the child would outlive the fork server"
    held = _CapabilityData()
    check(libc.capget(_CAPABILITY_HEADER, held))
    if any(held):
        return "capabilities are left"
    if prctl(PR_GET_NO_NEW_PRIVS) != 1 or prctl(_PR_GET_DUMPABLE) != 0:
        return "new privileges or tracing are possible"
    return ""


_LINUX = "it needs Linux 5.4 or later, without a container profile that denies prctl or setrlimit"

DESCRIPTORS = Layer("descriptors", _apply_descriptors, _probe_descriptors, _LINUX)
SESSION = Layer("session", _apply_session, _probe_session, _LINUX)
PRIVILEGES = Layer("privileges", _apply_privileges, _probe_privileges, _LINUX)
