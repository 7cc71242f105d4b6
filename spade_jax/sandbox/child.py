"""A forked child: locked down first, then one program's servant.

Everything here runs in the process that the program runs in, so nothing here
guards the trainer; the program may rewrite any of it. What it is for: honest
programs get clear errors, and the same behaviour on every machine.
"""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

from spade_jax.sandbox import layers, wire

FILENAME = "<program>"
_MODULE = "program"
_READ_BYTES = 65_536


def run(active: Iterable[layers.Layer], context: layers.Context) -> None:
    """Body of the child, which must exit when this returns: the lockdown failed."""
    try:
        layers.lock_down(active, context)
    except OSError as error:  # it held in the survey at start: the machine has changed
        _send(wire.encode([wire.READY_SEQ, False, wire.one_line(f"lockdown: {error}")]))
        return
    reader = wire.FrameReader(None)
    _, source, class_name = _receive(reader)
    _send(wire.encode([wire.READY_SEQ, True, None]))
    program = _Program(source, class_name)
    limits = context.limits
    while True:
        seq, method, args = _receive(reader)
        try:
            value = program.call(method, args)
            try:
                value = wire.checked(method, value, limits.observation_chars)
            except wire.ContractError:
                value = wire.checked(method, _with_plain_info(method, value), limits.observation_chars)
            frame = wire.encode([seq, True, value])
            if len(frame) > limits.frame_bytes:
                raise wire.ContractError(f"{method}() reply of {len(frame)} bytes; the limit is {limits.frame_bytes}")
        except BaseException as error:  # the program's SystemExit and KeyboardInterrupt are its own failures too
            frame = wire.encode([seq, False, _describe(error)])
        _send(frame)


class _Program:
    """Source text and, once constructed, an instance of its class."""

    def __init__(self, source: str, class_name: str) -> None:
        self._source = source
        self._class_name = class_name
        self._instance: Any = None

    def call(self, method: str, args: list[Any]) -> Any:
        if method == "step" and self._instance is not None:
            return self._instance.step(args[0])
        if method == "construct":
            self._construct()
            return None
        if self._instance is None:
            raise RuntimeError(f"{method} before construct")
        if method == "reset":
            return self._instance.reset(seed=args[0])
        if method == "close":
            if hasattr(self._instance, "close"):
                self._instance.close()
            return None
        return getattr(self._instance, method)(*args)

    def _construct(self) -> None:
        # A fresh module each time, so that module globals start anew as well.
        # It is registered because dataclasses look their module up by name.
        self._instance = None
        module = types.ModuleType(_MODULE)
        sys.modules[_MODULE] = module
        exec(compile(self._source, FILENAME, "exec", dont_inherit=True), module.__dict__)
        if self._class_name not in module.__dict__:
            raise NameError(f"the source defines no class {self._class_name}")
        self._instance = module.__dict__[self._class_name]()


def _with_plain_info(method: str, value: Any) -> Any:
    """What `reset` or `step` returned, its info dict as JSON can hold it.

    The contract leaves the info dict free, so that what does not fit is named
    by its type instead of refused. Never its repr: addresses differ in each run.
    """
    if method in ("reset", "step") and type(value) in (list, tuple) and value and isinstance(value[-1], dict):
        return (*value[:-1], _plain(value[-1], wire.MAX_DEPTH))
    return value


def _plain(value: Any, depth: int) -> Any:
    kind = type(value)
    if kind in (str, bool) or value is None:
        return value
    if kind is int:
        return value if -wire.MAX_INT <= value < wire.MAX_INT else "<int>"
    if kind is float:
        return value if math.isfinite(value) else str(value)
    if depth > 0 and isinstance(value, dict):
        return {k if type(k) is str else str(_plain(k, 0)): _plain(v, depth - 1) for k, v in value.items()}
    if depth > 0 and isinstance(value, (list, tuple)):
        return [_plain(v, depth - 1) for v in value]
    return f"<{kind.__name__}>"


def _describe(error: BaseException) -> str:
    """Type, message and line of the program, e.g. `KeyError: 'x' (line 12)`."""
    try:
        message = str(error)
    except BaseException:  # a hostile __str__
        message = ""
    line = error.lineno if isinstance(error, SyntaxError) else None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == FILENAME:
            line = trace.tb_lineno
        trace = trace.tb_next
    name = type(error).__name__
    where = f" (line {line})" if isinstance(line, int) else ""
    return wire.one_line(f"{name}: {message}" if message else name)[: wire.MAX_ERROR_CHARS - len(where)] + where


def _receive(reader: wire.FrameReader) -> list[Any]:
    while (message := reader.next()) is None:
        data = os.read(layers.CHANNEL, _READ_BYTES)
        if not data:
            os._exit(0)  # the trainer is gone
        reader.feed(data)
    return message


def _send(frame: bytes) -> None:
    while len(frame) > (sent := os.write(layers.CHANNEL, frame)):
        frame = frame[sent:]
