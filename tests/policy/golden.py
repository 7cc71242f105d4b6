"""Tiny random models whose weights follow from their tensors' names, so that golden files need not hold them."""

from __future__ import annotations

import json
import pathlib
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from spade_jax.policy import safetensors

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "golden"
TOKENS = 24


def weight(name: str, shape: tuple[int, ...], gemma: bool) -> np.ndarray:
    """float32: matrices keep the scale of what they multiply, norm scales stand around 1 (Gemma adds the 1 itself)."""
    drawn = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape)
    if len(shape) == 1:
        drawn = drawn * 0.2 + (1.0 if name.endswith("norm.weight") and not gemma else 0.0)
    elif "embed_tokens" not in name:
        drawn = drawn / np.sqrt(shape[-1])
    return drawn.astype(np.float32)


def projection(name: str, gradient: np.ndarray) -> tuple[float, float]:
    """Two numbers that a wrong gradient does not have: its norm, and its product with a random tensor."""
    random = np.random.default_rng(zlib.crc32(name.encode()) + 1).standard_normal(gradient.shape)
    return float(np.sqrt(np.sum(np.square(gradient, dtype=np.float64)))), float(np.sum(gradient * random))


def tokens_of(case: str, vocab: int) -> np.ndarray:
    return np.random.default_rng(zlib.crc32(case.encode())).integers(0, vocab, (1, TOKENS)).astype(np.int32)


def write_model(folder: pathlib.Path, settings: Mapping[str, Any], shapes: Mapping[str, Any], **options: Any) -> None:
    """A Hugging Face folder with config.json and the weights of `weight`."""
    (folder / "config.json").write_text(json.dumps(settings))
    gemma = settings["model_type"].startswith("gemma")
    tensors = {name: weight(name, tuple(shape), gemma) for name, shape in shapes.items()}
    safetensors.write_folder(folder, tensors, **({"dtype": "float32", "max_bytes": 1 << 30} | options))


def cases() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.npz"))


def load(case: str) -> dict[str, Any]:
    """settings, shapes, tokens int32[1, T], logits float32[T, V], gradients {name: (norm, projection)} or {}."""
    with np.load(FOLDER / f"{case}.npz") as store:
        found = {name: json.loads(str(store[name])) for name in ("settings", "shapes", "gradients")}
        return found | {"tokens": store["tokens"], "logits": store["logits"]}
