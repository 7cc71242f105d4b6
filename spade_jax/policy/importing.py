"""Weights and shape of a model from a Hugging Face folder or a GGUF file, read when a shard asks for them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flax import traverse_util

from spade_jax.policy import gguf_file, huggingface
from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.safetensors import SafetensorsFolder
from spade_jax.policy.weights import LazyParameter, Source, places

CONFIG = "config.json"
_LISTED = 20  # tensors of each kind named in a message


class _Renamed:
    """A source whose tensors have other names, some of which are left out."""

    def __init__(self, source: Source, kind: str):
        self._source = source
        self._names: dict[str, str] = {}
        for name in source.shapes():
            if name.endswith(huggingface.IGNORED_SUFFIXES) or name.startswith(
                huggingface.IGNORED_PREFIXES.get(kind, ())
            ):
                continue
            renamed = name
            for theirs, ours in huggingface.TEXT_PREFIXES.get(kind, ()):
                if name.startswith(theirs):
                    renamed = ours + name[len(theirs) :]
                    break
            self._names[renamed] = name

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self._source.shapes()
        return {ours: shapes[theirs] for ours, theirs in self._names.items()}

    def read(self, name: str) -> np.ndarray:
        return self._source.read(self._names[name])


def read_config(path: Path) -> dict[str, Any]:
    """The settings of a folder's config.json.

    Raises:
      ValueError: there is none, or it is no JSON object.
    """
    file = path / CONFIG
    if not file.is_file():
        raise ValueError(f"{path} holds no {CONFIG}")
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is no JSON ({error})") from error
    if not isinstance(settings, dict):
        raise ValueError(f"{file} is no JSON object")
    return settings


def read_settings(path: str | Path) -> dict[str, Any]:
    """The settings of a model, of which no more than the config must be there: config.json, or what GGUF says of it.

    Raises:
      ValueError: no such model.
    """
    path = Path(path)
    return read_config(path) if path.is_dir() else gguf_file.GGUFFile(path).settings()


def read_shape(path: str | Path) -> DecoderConfig:
    """The shape of a model; ValueError where there is none, or one that the decoder cannot be."""
    return huggingface.from_huggingface(read_settings(path))


def open_model(path: str | Path, param_dtype: str = "float32") -> tuple[dict[str, Any], DecoderConfig]:
    """(tree of `LazyParameter`, shape) of a model; nothing but headers is read.

    Args:
      path: a folder with config.json and safetensors, or a .gguf file.
      param_dtype: of the parameters, whatever precision the file stores.

    Raises:
      ValueError: no such model, one that the decoder cannot be, or tensors that are missing, left over or of
        another shape, all of which are listed.
    """
    path = Path(path)
    if path.is_dir():
        settings = read_config(path)
        source: Source = _Renamed(SafetensorsFolder(path), str(settings.get("model_type")))
    else:
        source = gguf_file.GGUFFile(path)
        settings = source.settings()
    config = huggingface.from_huggingface(settings)
    wanted = places(config)
    shapes = source.shapes()
    if config.tied_head:  # some checkpoints store the head that is the embedding once more
        shapes = {name: shape for name, shape in shapes.items() if name != "lm_head.weight"}
    expected = {name: place.stored for place in wanted.values() for name in place.names}
    problems = (
        ("missing", sorted(expected.keys() - shapes.keys())),
        ("left over", sorted(shapes.keys() - expected.keys())),
        (
            "of another shape",
            [
                f"{name} is {shapes[name]}, not {shape}"
                for name, shape in expected.items()
                if name in shapes and tuple(shapes[name]) != shape
            ],
        ),
    )
    if any(names for _, names in problems):
        raise ValueError(
            f"{path} does not hold the tensors of its own config: "
            + "; ".join(f"{len(names)} {what} ({_listed(names)})" for what, names in problems if names)
        )
    params = {place_path: LazyParameter(place, source, param_dtype) for place_path, place in wanted.items()}
    return traverse_util.unflatten_dict(params), config


def _listed(names: list[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
