"""The safetensors format, read tensor by tensor and written in one pass.

A file is the length of its header (8 bytes, little-endian), the header (JSON: name -> dtype, shape, byte offsets) and
the tensors' bytes. A model is one file or several with an index that names each tensor's file.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100 << 20  # bytes; what the reference implementation allows


class SafetensorsFile:
    """One file: its header, and its tensors as memory-mapped arrays.

    Raises:
      ValueError: the file is not in this format, or is cut off.
    """

    def __init__(self, path: Path):
        self.path = path
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 2 <= length <= min(_MAX_HEADER, size - 8):
                raise ValueError(f"{path} is no safetensors file: its header would have {length} bytes")
            try:
                header = json.loads(file.read(length))
            except ValueError as error:
                raise ValueError(f"{path} is no safetensors file: its header is no JSON ({error})") from error
        self._start = 8 + length
        self._entries: dict[str, tuple[np.dtype, tuple[int, ...], int]] = {}
        for name, entry in header.items():
            if name != "__metadata__":
                self._entries[name] = self._entry(name, entry, size - self._start)

    def _entry(self, name: str, entry: Any, available: int) -> tuple[np.dtype, tuple[int, ...], int]:
        try:
            kind, shape, (begin, end) = entry["dtype"], tuple(map(int, entry["shape"])), map(int, entry["data_offsets"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{self.path}: the header's entry of {name} is damaged") from error
        if kind not in _DTYPES:
            raise ValueError(f"{self.path}: {name} is of type {kind}, which is none of {', '.join(_DTYPES)}")
        dtype = _DTYPES[kind]
        if not 0 <= begin <= end <= available or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{self.path}: {name} lies outside the file or has another size; the file may be cut off")
        return dtype, shape, begin

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: shape for name, (_, shape, _) in self._entries.items()}

    def read(self, name: str) -> np.ndarray:
        """The tensor, mapped and not yet read; it is unmapped with the last reference to it."""
        dtype, shape, begin = self._entries[name]
        if not math.prod(shape):
            return np.zeros(shape, dtype)
        return np.memmap(self.path, dtype, "r", self._start + begin, shape)


class SafetensorsFolder:
    """All tensors of a folder, by the index where there is one, else of its single file.

    Raises:
      ValueError: no such files, or an index that names files or tensors that are not there.
    """

    def __init__(self, folder: Path):
        index = folder / INDEX
        if not index.exists():
            if not (folder / SINGLE).exists():
                raise ValueError(f"{folder} holds neither {SINGLE} nor {INDEX}")
            self._file_of = dict.fromkeys(SafetensorsFile(folder / SINGLE).shapes(), SINGLE)
        else:
            try:
                self._file_of = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{index} has no weight_map ({error})") from error
        names = sorted(set(self._file_of.values()))
        for name in names:
            if Path(name).name != name or not (folder / name).is_file():
                raise ValueError(f"{index} names {name}, which is no file of {folder}")
        self._files = {name: SafetensorsFile(folder / name) for name in names}
        shapes = {name: file.shapes() for name, file in self._files.items()}
        lost = [tensor for tensor, name in self._file_of.items() if tensor not in shapes[name]]
        if lost:
            raise ValueError(f"{index} names tensors that their files lack: {', '.join(sorted(lost)[:20])}")
        self._shapes = {tensor: shapes[name][tensor] for tensor, name in self._file_of.items()}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return dict(self._shapes)

    def read(self, name: str) -> np.ndarray:
        return self._files[self._file_of[name]].read(name)


def write_folder(folder: Path, tensors: Mapping[str, Any], dtype: str, max_bytes: int) -> list[str]:
    """Writes tensors into one file, or several with an index.

    Args:
      folder: exists.
      tensors: name -> anything with `shape` that `np.asarray` reads; each is read once, and let go.
      dtype: "float32", "bfloat16" or "float16"; what all are stored in.
      max_bytes: of one file; a larger tensor gets a file of its own.

    Returns:
      The names of the files.
    """
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    sizes = {name: math.prod(tensor.shape) * kind.itemsize for name, tensor in tensors.items()}
    groups: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if groups[-1] and filled + size > max_bytes:
            groups.append([])
            filled = 0
        groups[-1].append(name)
        filled += size
    if len(groups) == 1:
        _write_file(folder / SINGLE, groups[0], tensors, kind)
        return [SINGLE]
    files = [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    for file, group in zip(files, groups, strict=True):
        _write_file(folder / file, group, tensors, kind)
    weight_map = {name: file for file, group in zip(files, groups, strict=True) for name in group}
    index = {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
    return [*files, INDEX]


def _write_file(path: Path, names: Iterable[str], tensors: Mapping[str, Any], dtype: np.dtype) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers refuses a file that does not say so
    offset = 0
    for name in names:
        end = offset + math.prod(tensors[name].shape) * dtype.itemsize
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[dtype], "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    temporary = path.with_name(path.name + ".tmp")
    with temporary.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            array = np.ascontiguousarray(np.asarray(tensors[name]).astype(dtype, copy=False))
            file.write(array.reshape(-1).view(np.uint8).data)
    os.replace(temporary, path)
