"""Several processes that go through the same program: work shared out, results brought together.

What a process finds out by itself (what its sampler drew, what its sandbox answered, that it was asked to stop) is
exchanged here. From then on all hold the same values and compute the same from them, so nothing else has to be agreed
on. A process by itself exchanges nothing. Call everything here in the same order in every process; what another thread
has under way on the devices of all processes is to be ended before (`after`).

Values travel as JSON with the bytes of arrays behind it: exact, and nothing that arrives is ever executed. A deadline
goes through the store of the coordination service instead, in which nobody waits for anybody.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import json
import struct
import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax._src import distributed  # whose store of keys and values JAX makes public nowhere
from jax.experimental import multihost_utils

from spade_jax.runtime.errors import RunError, UsageError

T = TypeVar("T")
Item = TypeVar("Item")

_LENGTH = struct.Struct("<q")
_LEAST_BYTES = 1 << 12  # of a message: shapes are padded to powers of two, so that few programs are compiled
_LOOK_SECS = 0.1  # between two looks for a deadline that the first process may have announced
_WAIT: contextvars.ContextVar[Callable[[], None]] = contextvars.ContextVar("wait", default=lambda: None)
_ERRORS = {error.__name__: error for error in (UsageError, RunError)}


def is_first() -> bool:
    """Whether this process is the one that writes what is written once; True for a process by itself."""
    return jax.process_index() == 0


def spread(
    items: Sequence[Item],
    work: Callable[[Sequence[Item]], Sequence[T]],
    *structs: type,
    together: Callable[[Item], Hashable] | None = None,
) -> list[T]:
    """`work(items)`, every process doing a share of it.

    Args:
      items: the same in every process.
      work: returns a result for each of the items that it is given, which may be none.
      structs: the dataclasses that results consist of, beside JSON values, tuples and arrays.
      together: items for which it is equal are done by one process; None: each by whichever.

    Returns:
      A result for each item, in order, the same in every process.
    """
    processes, process = jax.process_count(), jax.process_index()
    if processes == 1:
        return list(work(items))
    # Dealt like cards: neighbours cost about the same, so that the shares do.
    seen: dict[Hashable, int] = {}
    keys = range(len(items)) if together is None else map(together, items)
    dealt = [seen.setdefault(key, len(seen)) % processes for key in keys]
    mine = [item for item, owner in zip(items, dealt, strict=True) if owner == process]
    shares = [iter(share) for share in gather(list(work(mine)), *structs)]
    return [next(shares[owner]) for owner in dealt]


def gather(value: T, *structs: type) -> list[T]:
    """Every process's value, in the order of the processes; `structs` as in `spread`."""
    if jax.process_count() == 1:
        return [value]
    _WAIT.get()()
    data = np.frombuffer(encode(value), np.uint8)
    sizes = np.asarray(multihost_utils.process_allgather(np.array([len(data)], np.int32))).reshape(-1)
    # One process after the other on the devices and off again.
    rows = np.asarray(multihost_utils.process_allgather(_padded(data, int(sizes.max()))))
    return [decode(row[:size].tobytes(), *structs) for row, size in zip(rows, sizes, strict=True)]


def from_first(work: Callable[[], T], *structs: type) -> T:
    """What `work()` returns in the first process, which alone calls it; its UsageError or RunError is raised in all."""
    if jax.process_count() == 1:
        return work()
    _WAIT.get()()
    data = b""
    if is_first():
        try:
            outcome = [work(), None]
        except tuple(_ERRORS.values()) as error:
            outcome = [None, [type(error).__name__, str(error)]]
        data = encode(outcome)
    size = int(multihost_utils.broadcast_one_to_all(np.array(len(data), np.int32)))
    received = multihost_utils.broadcast_one_to_all(_padded(np.frombuffer(data, np.uint8), size))
    value, error = decode(np.asarray(received)[:size].tobytes(), *structs)
    if error:
        kind, message = error
        raise _ERRORS[kind](message)
    return value


@contextlib.contextmanager
def after(wait: Callable[[], None]) -> Iterator[None]:
    """Calls `wait` before every exchange within, in the thread that exchanges; it exchanges nothing itself.

    For programs on the devices of all processes that another thread started: every process has to run them in the same
    order as the exchanges, or each waits for another for ever.
    """
    token = _WAIT.set(wait)
    try:
        yield
    finally:
        _WAIT.reset(token)


@contextlib.contextmanager
def deadline(name: str, secs: float) -> Iterator[Callable[[], bool]]:
    """Gives work a deadline, and a function that tells whether it has passed.

    It passes `secs` seconds after the first process came here, by that one's clock: a thread of its announces it to the
    others, however busy its own work is. What `gather` or `spread` brings together belongs inside, so that the first
    process is still there to decide while another has work to do.

    Args:
      name: the same in every process, and no other deadline's while they are joined.
      secs: 0 for none.
    """
    if not secs:
        yield lambda: False
        return
    over, left = threading.Event(), threading.Event()
    store, key = distributed.global_state.client, f"spade_jax/deadline/{name}"  # None in a process by itself

    def announce() -> None:
        if not left.wait(secs):
            over.set()
            if store is not None:
                store.key_value_set(f"{key}/passed", "")

    def listen() -> None:
        while not left.wait(_LOOK_SECS):
            if store.key_value_dir_get(key):
                over.set()
                return

    threading.Thread(target=announce if is_first() else listen, name="deadline", daemon=True).start()
    try:
        yield over.is_set
    finally:
        left.set()  # the thread is not waited for: it may be asking a first process that has died


def _padded(data: np.ndarray, size: int) -> np.ndarray:
    return np.pad(data, (0, max(_LEAST_BYTES, 1 << (size - 1).bit_length()) - len(data)))


# ---------------------------------------------------------------------------
# Values as bytes
# ---------------------------------------------------------------------------


def encode(value: Any) -> bytes:
    """A value as bytes.

    Args:
      value: JSON values, tuples, NumPy arrays and dataclasses of them, nested at will.

    Raises:
      TypeError: something else is in it.
    """
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, list):
            return [plain(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [plain(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
        if isinstance(value, np.ndarray):
            arrays.append(np.ascontiguousarray(value))
            return {"array": [value.dtype.str, list(value.shape)]}
        if dataclasses.is_dataclass(value):
            fields = [plain(getattr(value, field.name)) for field in dataclasses.fields(value)]
            return {"struct": [type(value).__name__, fields]}
        raise TypeError(f"{type(value).__name__} cannot be sent to other processes")

    text = json.dumps(plain(value)).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(array.tobytes() for array in arrays)])


def decode(data: bytes, *structs: type) -> Any:
    """Inverse of `encode`; `structs` are the dataclasses that may be in it."""
    known = {struct.__name__: struct for struct in structs}
    start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    position = start

    def rich(value: Any) -> Any:
        nonlocal position
        if isinstance(value, list):
            return [rich(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, content),) = value.items()
        if kind == "tuple":
            return tuple(rich(item) for item in content)
        if kind == "dict":
            return {rich(key): rich(item) for key, item in content}
        if kind == "array":
            dtype, shape = np.dtype(content[0]), tuple(content[1])
            count = int(np.prod(shape, dtype=np.int64))
            array = np.frombuffer(data, dtype, count, position).reshape(shape).copy()
            position += array.nbytes
            return array
        name, fields = content
        return known[name](*(rich(field) for field in fields))

    return rich(json.loads(data[_LENGTH.size : start]))
