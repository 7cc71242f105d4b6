"""The trainer's count of what its children hold in memory, from /proc.

The fields read here are open to every user, also for a child that cannot be
traced. Reading them costs about 10 us a child.
"""

from __future__ import annotations

import mmap
import select

_STATM_RESIDENT, _STATM_SHARED = 1, 2  # fields of /proc/PID/statm, in pages


def host_pid(pidfd: int) -> int:
    """The process id behind a pidfd, as this process sees it whatever its pid namespace. OSError if it cannot."""
    with open(f"/proc/self/fdinfo/{pidfd}") as file:
        for line in file:
            if line.startswith("Pid:") and (pid := int(line.split()[1])) > 0:  # -1 once it has ended
                return pid
    raise ProcessLookupError("the pidfd's process has ended")


def ended(pidfd: int) -> bool:
    """Whether the process behind a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _pages(pid: int) -> list[int]:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return [int(field) for field in file.read().split()]


def file_bytes(pid: int) -> int:
    """Memory of a fork server that is mapped from files, hence shared by all its children."""
    return _pages(pid)[_STATM_SHARED] * mmap.PAGESIZE


def charged_bytes(pid: int, files: int) -> int:
    """What a child is charged: its memory less the `files` of its fork server; 0 if it has ended.

    An upper bound: pages still shared with the fork server (about 8 MiB) count in each child.
    """
    try:
        return max(0, _pages(pid)[_STATM_RESIDENT] * mmap.PAGESIZE - files)
    except (OSError, IndexError):
        return 0


def beyond(held: dict[int, int], budget: int) -> list[int]:
    """The fewest keys, biggest first, without which the sum of `held` keeps within the budget."""
    total, found = sum(held.values()), []
    for key in sorted(held, key=held.__getitem__, reverse=True):
        if total <= budget:
            break
        total -= held[key]
        found.append(key)
    return found
