"""The fork server: a small warm interpreter that forks one child per environment.

The trainer starts it as a fresh interpreter (`command`), never by fork: JAX's
threads would leave locks held in a copy. It has one thread, an environment of
few variables, no site packages and no JAX. It outlives Ctrl-C, being in a session of
its own, and ends with the trainer: when the control socket closes, or when its
parent is another. Where the machine allows, it moves into namespaces of its own
before it serves (`layers/namespaces.py`), as the inner one of two processes.

On the control socket (SEQPACKET, one JSON object a packet):

    in   {"env": id}                       with one end of a socketpair attached
    out  {"event": "ready", "layers": [[name, active, evidence, applied], ...]}   with its own pidfd attached
         {"event": "spawned", "env": id}   with the child's pidfd attached
         {"event": "failed", "env": id, "error": text}
         {"event": "exit", "env": id, "code": CLD_*, "status": number}
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from spade_jax.sandbox import child, layers, modules
from spade_jax.sandbox.layers import ids, namespaces
from spade_jax.sandbox.limits import Limits

# How often to look whether the trainer is still the parent: a stray copy of the
# control socket in another process of the trainer's would hide its end.
_PARENT_MILLISECONDS = 1000
_PACKET_BYTES = 4096

# Runs the room's files without running the package's own __init__, which would
# import the trainer's side.
_BOOT = """\
import sys, types
for name, path in (("spade_jax", sys.argv[1]), ("spade_jax.sandbox", sys.argv[2])):
    module = types.ModuleType(name)
    module.__path__ = [path]
    sys.modules[name] = module
from spade_jax.sandbox import zygote
zygote.main(sys.argv[3:])
"""


def command(control: int, limits: Limits, wanted: Sequence[str], max_children: int) -> list[str]:
    """The command line of a fork server that speaks on descriptor `control` and tries the layers named `wanted`."""
    room = os.path.dirname(os.path.abspath(__file__))
    # Not -I: it would ignore PYTHONHASHSEED. These flags and a fresh environment
    # amount to the same.
    flags = ["-P", "-s", "-S", "-B", "-X", "utf8", "-W", "ignore"]
    options = {
        "control": control,
        "parent": os.getpid(),
        "limits": dataclasses.asdict(limits),
        "wanted": list(wanted),
        "max_children": max_children,
    }
    return [sys.executable, *flags, "-c", _BOOT, os.path.dirname(room), room, json.dumps(options)]


def environment(hash_seed: int) -> dict[str, str]:
    """The environment variables of a fork server."""
    # TZ: local time is the same on every machine, and needs no file.
    variables = {"PYTHONHASHSEED": str(hash_seed), "LC_ALL": "C.UTF-8", "TZ": "UTC0"}
    # A Python built with a shared library outside the system's path needs this to start.
    if "LD_LIBRARY_PATH" in os.environ:
        variables["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    return variables


def main(argv: list[str]) -> None:
    """Loads the modules, surveys the layers, then forks on request until the trainer ends."""
    options = json.loads(argv[0])
    control = socket.socket(fileno=options["control"])
    control.set_inheritable(False)
    layers.default_signals()
    # Two descriptors per child at most, and a few of our own. The limit is higher, because the kernel
    # holds it against the descriptors that all processes of this user have under way in sockets.
    max_descriptors = 2 * options["max_children"] + 64
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wanted = [layer for layer in layers.LAYERS if layer.name in options["wanted"]]
    context = layers.Context(
        limits=Limits(**options["limits"]),
        base_bytes=0,
        max_descriptors=max_descriptors,
        null=os.open(os.devnull, os.O_RDWR),
        uids=ids.free_ids("/proc/self/uid_map"),
        gids=ids.free_ids("/proc/self/gid_map"),
        server_pid=0,
        outside="",
    )
    # The machine out of memory should end a program, not the trainer. Children
    # inherit this, and of equals the kernel takes the biggest, which is not the server.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    modules.load_and_freeze()
    base_bytes = layers.address_space_bytes()
    # From here on no file is opened: there may be none in sight.
    leash = -1
    outside = namespaces.trial() if namespaces.NAMESPACES in wanted else "not asked for"
    if not outside:
        leash = namespaces.enter(control, options["parent"])
    context = dataclasses.replace(context, base_bytes=base_bytes, server_pid=os.getpid(), outside=outside)
    statuses = layers.survey(wanted, context)
    held = {status.name for status in statuses if status.applied}
    if layers.LAYERS[0].name not in held:
        raise SystemExit(f"no child can be set up: {layers.describe(statuses)}")
    server = _Server(control, options["parent"], leash, context, tuple(x for x in wanted if x.name in held))
    pidfd = os.pidfd_open(os.getpid())
    server.tell({"event": "ready", "layers": [dataclasses.astuple(status) for status in statuses]}, pidfd)
    os.close(pidfd)
    # Keeps the collector from writing to, and so copying, pages shared with children.
    gc.collect()
    gc.freeze()
    server.serve()


class _Server:
    def __init__(
        self,
        control: socket.socket,
        parent: int,
        leash: int,
        context: layers.Context,
        active: tuple[layers.Layer, ...],
    ) -> None:
        self._control = control
        self._parent = parent
        self._leash = leash  # readable once the outer process has ended; -1 where there is none
        self._context = context
        self._active = active
        self._children: dict[int, int] = {}  # pidfd -> environment id
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        if leash >= 0:
            self._poll.register(leash, select.POLLIN)

    def tell(self, message: dict[str, Any], pidfd: int | None = None) -> None:
        socket.send_fds(self._control, [json.dumps(message).encode()], [] if pidfd is None else [pidfd])

    def serve(self) -> None:
        try:
            while True:
                events = self._poll.poll(_PARENT_MILLISECONDS)
                if self._leash < 0 and os.getppid() != self._parent:
                    return
                for fd, _ in events:
                    if fd in self._children:
                        self._reap(fd)
                    elif fd == self._leash or not self._take():
                        return
        except (BrokenPipeError, ConnectionResetError):
            return  # the control socket broke: the trainer is gone
        finally:
            self._end()

    def _take(self) -> bool:
        """Takes one request; False at the end of the trainer."""
        packet, fds, _, _ = socket.recv_fds(self._control, _PACKET_BYTES, 1, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            return False
        env = json.loads(packet)["env"]
        (channel,) = fds
        try:
            pid = os.fork()
        except OSError as error:
            os.close(channel)
            self.tell({"event": "failed", "env": env, "error": f"fork: {error.strerror}"})
            return True
        if pid == 0:
            try:
                child.run(self._active, dataclasses.replace(self._context, channel=channel))
            finally:
                os._exit(1)
        # The child cannot vanish before it is waited for, so its pid is its own here.
        pidfd = os.pidfd_open(pid)
        os.close(channel)
        self._children[pidfd] = env
        self._poll.register(pidfd, select.POLLIN)
        self.tell({"event": "spawned", "env": env}, pidfd)
        return True

    def _reap(self, pidfd: int) -> None:
        env = self._children.pop(pidfd)
        result = os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        self.tell({"event": "exit", "env": env, "code": result.si_code, "status": result.si_status})

    def _end(self) -> None:
        """Ends and reaps every child, so that none is left to whoever adopts them."""
        for pidfd in self._children:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pidfd in self._children:
            os.waitid(os.P_PIDFD, pidfd, os.WEXITED)
