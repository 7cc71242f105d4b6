"""Frames and the validation of replies, without any process."""

from __future__ import annotations

import json
import math
import struct

import pytest

from spade_jax.sandbox import wire

CHARS = 20


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def test_encode_is_length_and_json():
    assert wire.encode([1, "step", ["é"]]) == b'\x00\x00\x00\x15[1,"step",["\\u00e9"]]'


def test_encode_refuses_nan_and_objects():
    with pytest.raises(ValueError):
        wire.encode([1, True, math.nan])
    with pytest.raises(TypeError):
        wire.encode([1, True, {1, 2}])


def test_reader_cuts_a_stream_fed_byte_by_byte():
    stream = wire.encode([1, True, "a"]) + wire.encode([2, False, "b"])
    reader, messages = wire.FrameReader(100), []
    for i in range(len(stream)):
        reader.feed(stream[i : i + 1])
        while (message := reader.next()) is not None:
            messages.append(message)
    assert messages == [[1, True, "a"], [2, False, "b"]]


def test_reader_keeps_what_is_left_of_a_read():
    frames = [wire.encode([seq, True, "x" * seq]) for seq in range(5)]
    stream = b"".join(frames)
    cut = len(frames[0]) + len(frames[1]) + 2  # inside the third one's length
    reader = wire.FrameReader(100)
    reader.feed(stream[:cut])
    assert [reader.next(), reader.next(), reader.next()] == [[0, True, ""], [1, True, "x"], None]
    reader.feed(stream[cut:-1])
    assert [reader.next(), reader.next(), reader.next()] == [[2, True, "xx"], [3, True, "xxx"], None]
    reader.feed(stream[-1:])
    assert [reader.next(), reader.next()] == [[4, True, "xxxx"], None]


def test_reader_refuses_a_length_before_its_bytes_arrive():
    reader = wire.FrameReader(100)
    reader.feed(struct.pack(">I", 101))
    with pytest.raises(wire.ProtocolError, match="101 bytes; the limit is 100"):
        reader.next()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[1,true",
        b"{}",
        b"[1,true]",
        b"[1,true,2,3]",
        b"[1,true,2]]",
        b" [1,true,2]",
        b"[1,true,NaN]",
        b"[1,true,-Infinity]",
        b"[1,true," + b"9" * 5000 + b"]",
        b"[" * 100_000,
        b"[" * 100_000 + b"]" * 100_000,
    ],
    ids=lambda payload: payload[:12].decode("latin-1"),
)
def test_decode_refuses(payload):
    reader = wire.FrameReader(10**6)
    reader.feed(frame(payload))
    with pytest.raises(wire.ProtocolError):
        reader.next()


@pytest.mark.parametrize(
    "method, value, expected",
    [
        ("reset", ["o", {"a": [1, None, True, 0.5, {"b": "c"}]}], ("o", {"a": [1, None, True, 0.5, {"b": "c"}]})),
        ("step", ["o", 1, True, False, {}], ("o", 1.0, True, False, {})),
        ("step", ("é", -0.5, False, True, {"success": True}), ("é", -0.5, False, True, {"success": True})),
        ("solution", ["a", "b"], ["a", "b"]),
        ("secrets", (), []),
        ("construct", None, None),
        ("close", None, None),
    ],
)
def test_checked_passes(method, value, expected):
    found = wire.checked(method, value, CHARS)
    assert found == expected
    if method == "step":
        assert type(found[1]) is float


@pytest.mark.parametrize(
    "method, value, said",
    [
        ("reset", "text", "got str"),
        ("reset", ["o"], "got list of length 1"),
        ("reset", [1, {}], "observation must be a str, got int"),
        ("reset", ["o", []], "info must be a dict, got list"),
        ("reset", ["x" * 21, {}], "has 21 characters; the limit is 20"),
        ("reset", ["\ud800", {}], "lone surrogate"),
        ("reset", ["o", {"a": "\udfff"}], "lone surrogate"),
        ("reset", ["o", {"\udfff": 1}], "lone surrogate"),
        ("reset", ["o", {1: 2}], "key of type int"),
        ("reset", ["o", {"a": 2**63}], "64 bits"),
        ("reset", ["o", {"a": math.inf}], "not finite"),
        ("reset", ["o", {"a": {1}}], "holds a set"),
        ("reset", ["o", json.loads('{"a":' * 9 + "{}" + "}" * 9)], "deeper than 8"),
        ("step", ["o", 0.0, True, False], "got list of length 4"),
        ("step", ["o", True, True, False, {}], "reward must be a number, got bool"),
        ("step", ["o", "1", True, False, {}], "reward must be a number, got str"),
        ("step", ["o", None, True, False, {}], "reward must be a number, got NoneType"),
        ("step", ["o", math.nan, True, False, {}], "not finite"),
        ("step", ["o", 10**400, True, False, {}], "not finite"),
        ("step", ["o", 0.0, 1, False, {}], "terminated must be a bool, got int"),
        ("step", ["o", 0.0, True, None, {}], "truncated must be a bool, got NoneType"),
        ("solution", "up", "list of str, got str"),
        ("solution", [1], "entry must be a str, got int"),
        ("secrets", ["x"] * 1001, "1001 entries; the limit is 1000"),
        ("construct", 1, "must give nothing"),
    ],
)
def test_checked_refuses(method, value, said):
    with pytest.raises(wire.ContractError, match=said):
        wire.checked(method, value, CHARS)


def test_one_line_is_printable_and_short():
    assert wire.one_line("a\x1b[2J\n\tb\u2028\ud800c") == "a [2J b c"
    assert len(wire.one_line("x" * 10_000)) == wire.MAX_ERROR_CHARS
