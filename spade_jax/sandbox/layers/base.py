"""What every layer is made of."""

from __future__ import annotations

import ctypes
import dataclasses
import os
from collections.abc import Callable

from spade_jax.sandbox.limits import Limits

CHANNEL = 3  # the descriptor on which a child speaks, whatever it was before

libc = ctypes.CDLL(None, use_errno=True)


@dataclasses.dataclass(frozen=True)
class Context:
    """What a layer needs to know.

    Attributes:
      limits: the program's limits.
      base_bytes: address space of the fork server, inherited by every child.
      max_descriptors: no descriptor of the fork server is this high.
      null: descriptor of /dev/null, since a private root has no files.
      uids: user ids from which each child takes its own; empty if there are none.
      gids: the same for group ids.
      server_pid: process id of the fork server, as the fork server sees it.
      outside: why the fork server is not in namespaces of its own, "" if it is.
      channel: descriptor to keep; `descriptors` moves it to CHANNEL.
    """

    limits: Limits
    base_bytes: int
    max_descriptors: int
    null: int
    uids: range
    gids: range
    server_pid: int
    outside: str
    channel: int = -1


@dataclasses.dataclass(frozen=True)
class Layer:
    """One layer.

    Attributes:
      name: short, for logs and configs.
      apply: locks the child down; OSError when this machine cannot.
      probe: tries what is forbidden; returns what got through, "" if nothing did.
      advice: which kernel setting, package or container flag gives the layer.
      masks: it forbids what the probes of earlier layers try, so that these run before it is applied.
      late: its probe runs after all layers are applied, since another may enforce the same.
    """

    name: str
    apply: Callable[[Context], None]
    probe: Callable[[Context], str]
    advice: str
    masks: bool = False
    late: bool = False


@dataclasses.dataclass(frozen=True)
class LayerStatus:
    """Whether a layer holds on this machine, and if not, what was seen.

    Attributes:
      name: of the layer.
      active: it was applied, and its probe found nothing.
      evidence: what was seen, "" where active.
      applied: it is applied to every child, for what it is worth where not active.
    """

    name: str
    active: bool
    evidence: str = ""
    applied: bool = True


def check(result: int) -> int:
    """`result` of a C call. Raises OSError where it is negative."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def prctl(option: int, value: int = 0, third: int = 0) -> int:
    return check(libc.prctl(option, value, third, 0, 0))


PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS = 1, 38, 39  # linux/prctl.h
