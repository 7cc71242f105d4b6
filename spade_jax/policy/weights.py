"""Where every parameter stands in a Hugging Face checkpoint, and parameters that are read when they are indexed.

A checkpoint keeps one matrix [out, in] per layer (and expert); we keep [in, ...out] stacked over layers (and
experts), heads and head width apart. Each of our matrices is a reshaped and transposed view of one of theirs, so that
a shard of ours is read from the parts of theirs that it needs, and the way back is the same table.

Axis legend: L layers, E experts.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.lora import merged_parameter

_ALIGNMENT = 64  # bytes; what XLA:CPU asks of an array that it is to use in place


@dataclasses.dataclass(frozen=True)
class Place:
    """One parameter's tensors in a checkpoint.

    Attributes:
      names: of the tensors, in the order of the stacked axes; one name where it is not stacked.
      lead: the sizes of the stacked axes: (), (L,) or (L, E).
      split: shape that a tensor takes before its axes are permuted, as (out, in) with heads apart.
      order: permutation of `split` that gives the parameter's own axes.
      stored: shape of a tensor in the checkpoint.
    """

    names: tuple[str, ...]
    lead: tuple[int, ...]
    split: tuple[int, ...]
    order: tuple[int, ...]
    stored: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the parameter."""
        return (*self.lead, *(self.split[i] for i in self.order))


def places(config: DecoderConfig) -> dict[tuple[str, ...], Place]:
    """Parameter path -> where it stands, for every parameter of `Decoder(config)`."""
    c = config
    D, H, K, W, F = c.embed_dim, c.num_heads, c.num_kv_heads, c.head_dim, c.mlp_dim
    found: dict[tuple[str, ...], Place] = {}

    def single(path: tuple[str, ...], name: str, shape: tuple[int, ...]) -> None:
        found[path] = Place((name,), (), shape, tuple(range(len(shape))), shape)

    def layered(path: str, name: str, split: tuple[int, ...], order: tuple[int, ...], stored: tuple[int, ...]) -> None:
        names = tuple(f"model.layers.{i}.{name}" for i in range(c.num_layers))
        found["layers", *path.split("/")] = Place(names, (c.num_layers,), split, order, stored)

    def vector(path: str, name: str, shape: tuple[int, ...]) -> None:
        layered(path, name, shape, tuple(range(len(shape))), (math.prod(shape),))

    single(("embedding",), "model.embed_tokens.weight", (c.vocab_size, D))
    if not c.tied_head:
        single(("head_kernel",), "lm_head.weight", (c.vocab_size, D))
    single(("final_norm", "scale"), "model.norm.weight", (D,))
    vector("attention_norm/scale", "input_layernorm.weight", (D,))
    for ours, theirs, heads in (("q", "q_proj", H), ("k", "k_proj", K), ("v", "v_proj", K)):
        layered(f"attention/{ours}", f"self_attn.{theirs}.weight", (heads, W, D), (2, 0, 1), (heads * W, D))
        if c.qkv_bias:
            vector(f"attention/{ours}_bias", f"self_attn.{theirs}.bias", (heads, W))
    layered("attention/o", "self_attn.o_proj.weight", (D, H, W), (1, 2, 0), (D, H * W))
    if c.output_bias:
        vector("attention/o_bias", "self_attn.o_proj.bias", (D,))
    if c.qk_norm:
        vector("attention/q_norm/scale", "self_attn.q_norm.weight", (W,))
        vector("attention/k_norm/scale", "self_attn.k_norm.weight", (W,))
    if c.sandwich_norm:
        vector("attention_post_norm/scale", "post_attention_layernorm.weight", (D,))
        vector("mlp_norm/scale", "pre_feedforward_layernorm.weight", (D,))
        vector("mlp_post_norm/scale", "post_feedforward_layernorm.weight", (D,))
    else:
        vector("mlp_norm/scale", "post_attention_layernorm.weight", (D,))
    products = (("gate", "gate_proj", (F, D)), ("up", "up_proj", (F, D)), ("down", "down_proj", (D, F)))
    for ours, theirs, shape in products:
        if c.num_experts:
            stack = itertools.product(range(c.num_layers), range(c.num_experts))
            names = tuple(f"model.layers.{i}.mlp.experts.{e}.{theirs}.weight" for i, e in stack)
            found["layers", "mlp", ours] = Place(names, (c.num_layers, c.num_experts), shape, (1, 0), shape)
        else:
            layered(f"mlp/{ours}", f"mlp.{theirs}.weight", shape, (1, 0), shape)
        if c.mlp_bias:
            vector(f"mlp/{ours}_bias", f"mlp.{theirs}.bias", shape[:1])
    if c.num_experts:
        layered("mlp/router", "mlp.gate.weight", (c.num_experts, D), (1, 0), (c.num_experts, D))
    return found


class Source(Protocol):
    """Tensors by name, read when asked for."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> np.ndarray: ...


class LazyParameter:
    """A parameter that is read from a checkpoint when it is indexed, and only there.

    Attributes:
      shape, dtype: of the whole, as an array has them.
    """

    def __init__(self, place: Place, source: Source, dtype: str):
        self.shape, self.dtype = place.shape, np.dtype(dtype)
        self._place, self._source = place, source

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def __getitem__(self, index: Any) -> np.ndarray:
        """A block: `index` is a tuple of slices of step 1, as a sharding gives them, or `...`."""
        given = () if index is Ellipsis else index if isinstance(index, tuple) else (index,)
        slices = (*given, *(slice(None),) * (len(self.shape) - len(given)))
        ranges = [range(size)[part] for size, part in zip(self.shape, slices, strict=True)]
        block = _aligned(tuple(map(len, ranges)), self.dtype)
        lead = len(self._place.lead)
        for position in itertools.product(*(range(len(r)) for r in ranges[:lead])):
            at = [ranges[axis][i] for axis, i in enumerate(position)]
            name = self._place.names[int(np.ravel_multi_index(at, self._place.lead)) if at else 0]
            view = self._source.read(name).reshape(self._place.split).transpose(self._place.order)
            block[position] = view[tuple(slices[lead:])]
        return block

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[...] if dtype is None else self[...].astype(dtype)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    count = math.prod(shape) * dtype.itemsize
    buffer = np.empty(count + _ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % _ALIGNMENT
    return buffer[start : start + count].view(dtype).reshape(shape)


class ExportedTensor:
    """One tensor of a checkpoint, cut out of a parameter when it is read."""

    def __init__(self, fetch: Callable[[], np.ndarray], place: Place, position: tuple[int, ...]):
        self.shape = place.stored
        self._fetch, self._place, self._position = fetch, place, position

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        matrix = self._fetch()[self._position]
        matrix = matrix.transpose(np.argsort(self._place.order)).reshape(self.shape)
        return matrix if dtype is None else matrix.astype(dtype)


def exported(params: Mapping[str, Any], config: DecoderConfig) -> Iterator[tuple[str, ExportedTensor]]:
    """(name, tensor) of a checkpoint, parameter by parameter: read in this order, one is on the host at a time.

    What adapters add is in the weights.
    """

    @functools.lru_cache(maxsize=1)
    def fetch(path: tuple[str, ...]) -> np.ndarray:
        return np.asarray(merged_parameter(params, path, config))

    for path, place in places(config).items():
        positions = itertools.product(*map(range, place.lead))
        for name, position in zip(place.names, positions, strict=True):
            yield name, ExportedTensor(functools.partial(fetch, path), place, position)
