"""Calls that only an administrator may make, with arguments that do nothing: any answer but a refusal counts."""

# expect: ok
# needs: seccomp, ids, privileges

import ctypes
import errno
import sys

libc = ctypes.CDLL(None, use_errno=True)
ARM = "aarch64" in sys.implementation._multiarch


def administer(number, *arguments):
    """Raises where the kernel refuses; an error about the arguments means that it would have obeyed."""
    if libc.syscall(number, *arguments) < 0 and ctypes.get_errno() in (errno.EPERM, errno.EACCES, errno.ENOSYS):
        raise PermissionError


ATTEMPTS = [
    lambda: administer(142 if ARM else 169, 0, 0, 0, None),  # reboot
    lambda: administer(105 if ARM else 175, None, 0, None),  # init_module
    lambda: administer(106 if ARM else 176, None, 0),  # delete_module
    lambda: administer(225 if ARM else 168, None),  # swapoff
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for attempt in ATTEMPTS:
            attempts += 1
            try:
                attempt()
            except OSError:
                continue
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
