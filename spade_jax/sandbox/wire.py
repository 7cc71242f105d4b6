"""Frames on the wire, and what a reply may hold.

A frame is a length (uint32, big-endian) and that many bytes of JSON:

    request  [seq, method, args]
    reply    [seq, true, value]  or  [seq, false, "one line of error"]

Requests are numbered from 1 in each child and answered in order. Frame 0 goes
to the child first, [0, source, class_name], and comes back as [0, true, null]
once the child is locked down, or as [0, false, error] if it cannot be: in both
cases before any line of the program has run.

The child may be hostile, so the trainer believes nothing in a reply: `FrameReader`
caps its size, `decode` refuses what JSON libraries are lenient about, and
`checked` holds each value to the contract. The honest child holds itself to the
same `checked` first, which is how a program's mistake (an exception, with a
reason for its author) is told from a forged reply (a protocol fault).
"""

from __future__ import annotations

import json
import math
from json import encoder
from typing import Any

METHODS = ("construct", "reset", "step", "solution", "secrets", "close")
READY_SEQ = 0
MAX_ERROR_CHARS = 300
MAX_LISTED = 1000  # commands of a solution, or secrets
MAX_DEPTH = 8  # nesting of an info dict
MAX_INT = 2**63  # larger integers break consumers that convert to float or int64

_HEADER_BYTES = 4

# JSONEncoder.encode makes one of these for every call, which took a quarter of a child's time for a step:
# no markers of cycles, default, strings, no indent, two separators, keys as they come, none skipped, no NaN.
_chunks = encoder.c_make_encoder(
    None, json.JSONEncoder().default, encoder.encode_basestring_ascii, None, ":", ",", False, False, False
)


class ProtocolError(Exception):
    """The bytes are not what a child of ours would send."""


class ContractError(Exception):
    """A method returned what the environment contract does not allow."""


def encode(message: list[Any]) -> bytes:
    """One frame. Raises TypeError or ValueError for what JSON cannot hold (NaN included)."""
    payload = "".join(_chunks(message, 0)).encode("ascii")
    return len(payload).to_bytes(_HEADER_BYTES, "big") + payload


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


_decode_json = json.JSONDecoder(parse_constant=_no_constant).raw_decode  # takes no blanks around it, and is quicker


def decode(payload: bytes) -> list[Any]:
    """The list inside a frame. Raises ProtocolError for anything else."""
    try:
        text = payload.decode("utf-8")
        message, end = _decode_json(text)
    # RecursionError: brackets nested by the thousand. ValueError covers bad UTF-8,
    # bad JSON and integers longer than Python converts.
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"frame is not JSON ({type(error).__name__})") from None
    if type(message) is not list or len(message) != 3 or end != len(text):
        raise ProtocolError("frame is not a list of three")
    return message


class FrameReader:
    """Cuts a byte stream into frames; holds at most one frame and one read more."""

    def __init__(self, frame_bytes: int | None) -> None:
        """`frame_bytes` caps a frame; None trusts the sender (the child reads the trainer)."""
        self._cap = frame_bytes
        self._buffer: bytes | bytearray = b""
        self._at = 0  # where in the buffer the next frame begins

    def feed(self, data: bytes) -> None:
        if self._at == len(self._buffer):  # the usual case, which copies nothing
            self._buffer = data
        else:
            # Appending to a bytearray, so that a frame that comes byte by byte costs no square of its length.
            rest = bytearray(self._buffer) if type(self._buffer) is bytes else self._buffer
            del rest[: self._at]
            rest += data
            self._buffer = rest
        self._at = 0

    def next(self) -> list[Any] | None:
        """The next whole frame, decoded; None when more bytes are needed."""
        buffer, at = self._buffer, self._at
        start = at + _HEADER_BYTES
        if len(buffer) < start:
            return None
        size = int.from_bytes(buffer[at:start], "big")
        if self._cap is not None and size > self._cap:
            raise ProtocolError(f"frame of {size} bytes; the limit is {self._cap}")
        end = start + size
        if len(buffer) < end:
            return None
        self._at = end
        return decode(buffer[start:end])


def one_line(text: str) -> str:
    """`text` made fit for a log: one line, printable, short, encodable."""
    printable = "".join(c if c.isprintable() else " " for c in text[: 4 * MAX_ERROR_CHARS])
    return " ".join(printable.split())[:MAX_ERROR_CHARS]


def checked(method: str, value: Any, observation_chars: int) -> Any:
    """`value` as the contract wants it from `method`, or ContractError.

    Returns (str, dict) for reset, (str, float, bool, bool, dict) for step, list
    of str for solution and secrets, None for construct and close. Types are
    exact: a bool is no reward, and an int is no flag.
    """
    if method == "step":
        if type(value) not in (list, tuple) or len(value) != 5:
            raise ContractError(f"step() must return five values, got {_shape(value)}")
        observation, reward, terminated, truncated, info = value
        _check_text("step() observation", observation, observation_chars)
        if type(reward) is not float and type(reward) is not int:
            raise ContractError(f"step() reward must be a number, got {type(reward).__name__}")
        try:
            reward = float(reward)
        except OverflowError:
            reward = math.inf
        if not math.isfinite(reward):
            raise ContractError("step() reward is not finite")
        if type(terminated) is not bool or type(truncated) is not bool:
            name, flag = ("truncated", truncated) if type(terminated) is bool else ("terminated", terminated)
            raise ContractError(f"step() {name} must be a bool, got {type(flag).__name__}")
        _check_info("step()", info)
        return observation, reward, terminated, truncated, info
    if method == "reset":
        if type(value) not in (list, tuple) or len(value) != 2:
            raise ContractError(f"reset() must return (observation, info), got {_shape(value)}")
        observation, info = value
        _check_text("reset() observation", observation, observation_chars)
        _check_info("reset()", info)
        return observation, info
    if method in ("solution", "secrets"):
        if type(value) not in (list, tuple):
            raise ContractError(f"{method}() must return a list of str, got {_shape(value)}")
        if len(value) > MAX_LISTED:
            raise ContractError(f"{method}() lists {len(value)} entries; the limit is {MAX_LISTED}")
        for entry in value:
            _check_text(f"{method}() entry", entry, observation_chars)
        return list(value)
    if value is not None:
        raise ContractError(f"{method}() must give nothing, got {_shape(value)}")
    return None


def _shape(value: Any) -> str:
    length = f" of length {len(value)}" if type(value) in (list, tuple) else ""
    return type(value).__name__ + length


def _check_text(what: str, text: Any, limit: int) -> None:
    if type(text) is not str:
        raise ContractError(f"{what} must be a str, got {type(text).__name__}")
    if len(text) > limit:
        raise ContractError(f"{what} has {len(text)} characters; the limit is {limit}")
    if not text.isascii():
        _check_encodable(what, text)


def _check_encodable(what: str, text: str) -> None:
    # Half a surrogate pair is a legal str that no tokenizer or file can take.
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ContractError(f"{what} holds a lone surrogate") from None


def _check_info(what: str, info: Any) -> None:
    if type(info) is not dict:
        raise ContractError(f"{what} info must be a dict, got {type(info).__name__}")
    if info:
        _check_plain(f"{what} info", info, MAX_DEPTH)


def _check_plain(what: str, value: Any, depth: int) -> None:
    kind = type(value)
    if kind is str:
        _check_encodable(what, value)
    elif kind is int:
        if not -MAX_INT <= value < MAX_INT:
            raise ContractError(f"{what} holds an integer beyond 64 bits")
    elif kind is float:
        if not math.isfinite(value):
            raise ContractError(f"{what} holds a number that is not finite")
    elif kind is list or kind is dict:
        if depth == 0:
            raise ContractError(f"{what} is nested deeper than {MAX_DEPTH}")
        if kind is dict:
            for key in value:
                if type(key) is not str:
                    raise ContractError(f"{what} has a key of type {type(key).__name__}")
                _check_encodable(what, key)
            value = value.values()
        for entry in value:
            _check_plain(what, entry, depth - 1)
    elif kind is not bool and value is not None:
        raise ContractError(f"{what} holds a {kind.__name__}")
