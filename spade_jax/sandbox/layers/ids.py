"""A user and a group for each child alone, where the trainer is root."""

from __future__ import annotations

import contextlib
import errno
import os

from spade_jax.sandbox.layers.base import Context, Layer

# Ids from here up to 2**31 belong to nobody by convention (systemd's "Users,
# Groups, UIDs and GIDs"). Adding the process id gives each child its own: pids
# are below 2**22, and a shared one would let children signal each other. Pids
# repeat between fork servers in pid namespaces of their own; children that share
# an id then do not see each other.
_FIRST_ID, _PID_MAX = 0x70000000, 2**22
_OVERFLOW_ID = 65534
_LEAST_IDS = 1000


def free_ids(map_path: str) -> range:
    """The ids that children may take, inside what the user namespace maps; empty if those are too few."""
    ranges = []
    with open(map_path) as file:
        for line in file:
            first, _, count = map(int, line.split())
            ranges.append((first, first + count))
    if any(first <= _FIRST_ID and end >= _FIRST_ID + _PID_MAX for first, end in ranges):
        return range(_FIRST_ID, _FIRST_ID + _PID_MAX)
    # A rootless container maps few ids: take the upper half of its largest range.
    first, end = max(ranges, key=lambda r: r[1] - r[0])
    end = min(end, _OVERFLOW_ID)
    start = first + (end - first) // 2
    return range(start, end) if end - start >= _LEAST_IDS else range(0)


def own_id(free: range) -> int:
    """The id of this process among them."""
    return free[os.getpid() % len(free)]


def _apply(context: Context) -> None:
    if os.geteuid() != 0:
        raise OSError(errno.EPERM, "not root, so children run as the trainer's user")
    if not context.uids or not context.gids:
        raise OSError(errno.EPERM, "the user namespace maps too few ids")
    uid, gid = own_id(context.uids), own_id(context.gids)
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _probe(context: Context) -> str:
    if os.getresuid()[0] == 0 or 0 in os.getresgid() or os.getgroups():
        return "an id of root is left"
    for attempt in (lambda: os.setuid(0), lambda: os.kill(context.server_pid, 0)):
        with contextlib.suppress(PermissionError):
            attempt()
            return "the fork server's user is within reach"
    return ""


IDS = Layer(
    "ids", _apply, _probe, "run as root, with --cap-add=SETUID,SETGID in a container that drops these capabilities"
)
