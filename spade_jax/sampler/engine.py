"""The host side of sampling: conversations, slots, admission, and the loop around the device functions.

Single-threaded. `step` admits waiting conversations, prefills what is new, draws one
block of tokens in all busy slots and hands back what finished; between two steps the
caller collects environment replies, submits, closes, and may swap the weights.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
import heapq
import math
import time
from collections.abc import Callable, Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from spade_jax.policy import (
    Decoder,
    DecoderConfig,
    cache_spec,
    cast_params,
    init_cache,
    merge_adapters,
    quantize_params,
    split_layers,
    unrolled_params,
)
from spade_jax.sampler.decode import SlotState, copy_rows, decode_block, prefill, shares
from spade_jax.sampler.sampling import SamplingConfig, pack

# Shapes of the prefill: few, because each pair costs a compilation, yet near what is needed,
# because padding costs as much as tokens. Long prompts go through in several chunks, many rows in several calls.
_CHUNKS = (16, 64, 256)
_ROWS = (1, 4, 16)  # replies come by ones and twos; what a group shares is one row
_MAX_SCORES = 1 << 29  # rows x chunk x heads x window of one call: at most 2 GiB of attention scores
_MAX_CACHED = 1 << 32  # bytes of the cache that the rows of one call have, of which there are copies while it runs
_MIN_WINDOW = 256
_MIN_DECODE = 3  # rows of the smallest decode call: the last of a few long responses are not to cost what all did
# Rows cost what they cost, idle or not:
_FULL = 0.9  # where fewer of a decode call's rows would draw, it takes half as many rows, and some conversations wait
_WORTH_WAITING = 8  # but not for calls of fewer rows, which cost nearly as much: the weights are read all the same
_BUSY = 0.7  # where fewer of a block's conversations still draw, it ends, so that others can have their rows
_MIN_SHARED = 16  # a shorter common prefix is cheaper to compute than to copy


@dataclasses.dataclass(frozen=True)
class Response:
    """What one submit led to.

    Attributes:
      handle: the conversation.
      tokens: int32[R] tokens drawn, with the stop token if it was drawn.
      logp: float32[R] log-probs under the distribution each token was drawn from.
      versions: int32[R] version of the weights that drew each token.
      stopped: the stop token was drawn.
      out_of_context: the response was cut, or could not begin, because the
        conversation fills its context.
      stale_cache: some token attended to keys and values of older weights
        (only with on_swap="stale").
    """

    handle: int
    tokens: np.ndarray
    logp: np.ndarray
    versions: np.ndarray
    stopped: bool
    out_of_context: bool
    stale_cache: bool = False


@dataclasses.dataclass
class Counters:
    """Running totals since the engine was made, or since `Engine.take_counters`.

    Attributes:
      sampled_tokens: tokens drawn.
      prefilled_tokens: prompt tokens computed (padding not counted).
      stale_tokens: tokens drawn that attended to keys and values of older weights.
      copied_tokens: prompt tokens taken over from a conversation with the same prefix.
      slot_steps: decode steps times the rows that were computed in them.
      prefill_seconds: wall time of prefills and copies.
      decode_seconds: wall time of decode blocks.
      compilations: distinct shapes that the device functions were called with.
    """

    sampled_tokens: int = 0
    prefilled_tokens: int = 0
    stale_tokens: int = 0
    copied_tokens: int = 0
    slot_steps: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    compilations: int = 0

    @property
    def occupancy(self) -> float:
        """Share of the computed rows that drew a token; 0 before the first."""
        return self.sampled_tokens / max(1, self.slot_steps)


@dataclasses.dataclass
class _Request:
    """An unfinished response."""

    budget: int  # tokens it may draw in all
    capped: bool  # the budget is what the context leaves, not what was asked for
    tokens: list[int] = dataclasses.field(default_factory=list)
    logp: list[float] = dataclasses.field(default_factory=list)
    versions: list[int] = dataclasses.field(default_factory=list)
    stale: bool = False

    @property
    def left(self) -> int:
        """Tokens that it may still draw."""
        return self.budget - len(self.tokens)


@dataclasses.dataclass
class _Conversation:
    handle: int
    seed: np.ndarray  # uint32[2]
    sampling: SamplingConfig
    group: str | None
    tokens: np.ndarray  # int32[C]; the first `length` are the conversation
    length: int = 0
    cached: int = 0  # leading tokens whose keys and values are in the slot's row
    cache_version: int = -1  # oldest version of the weights that computed any of them
    slot: int | None = None
    request: _Request | None = None
    drew: int = 0  # number of the last block that it was in

    @property
    def pending(self) -> int:
        """Tokens to prefill; the last token is not among them, because the decode step feeds it."""
        return self.length - 1 - self.cached


def conversation_seed(conversation_id: str) -> np.ndarray:
    """uint32[2]: the first 8 bytes of the id's SHA-256."""
    digest = hashlib.sha256(conversation_id.encode()).digest()
    return np.frombuffer(digest[:8], ">u4").astype(np.uint32)


def common_prefix(a: np.ndarray, b: np.ndarray) -> int:
    """Number of leading tokens that two token arrays share."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def sampling_params(params: Any, config: DecoderConfig, weight_dtype: str) -> Any:
    """What draws in place of the learner's parameters: adapters merged, weights in the precision of the products."""
    convert = quantize_params if weight_dtype == "int8" else cast_params
    return convert(merge_adapters(params, config), config.dtype)


_converted = jax.jit(sampling_params, static_argnums=(1, 2))


def prefill_rows(config: DecoderConfig, parts: int, cache_dtype: str, chunk: int, window: int) -> tuple[int, ...]:
    """Rows that a prefill may have in each of as many parts of the slots; the fewest first.

    Args:
      config: the network's shape.
      parts: see `decode.shares`.
      cache_dtype: of keys and values.
      chunk: tokens of a row.
      window: cache positions in use.
    """
    scores = chunk * config.num_heads * window
    cached = 2 * config.num_layers * config.num_kv_heads * config.head_dim * window * jnp.dtype(cache_dtype).itemsize
    most = min(_MAX_SCORES // scores, _MAX_CACHED // cached)
    return tuple(n for n in _row_sizes(parts) if n <= most) or (1,)


def _row_sizes(parts: int) -> tuple[int, ...]:
    """Rows of a call in each of as many parts of the slots."""
    return tuple(sorted({max(1, rows // parts) for rows in _ROWS}))


def largest_prefill(config: DecoderConfig, parts: int, cache_dtype: str, context: int) -> tuple[int, int]:
    """(rows in each part of the slots, tokens) of the largest prefill at full context."""
    chunk = min(_CHUNKS[-1], context)
    return prefill_rows(config, parts, cache_dtype, chunk, context)[-1], chunk


def _bucket(value: int, sizes: tuple[int, ...]) -> int:
    """The largest size that `value` fills by more than half, or the smallest there is."""
    return max((size for size in sizes if value > size // 2), default=sizes[0])


class Engine:
    """Draws responses for many conversations on a fixed number of slots.

    A conversation takes a slot at its first submit (first come, first served) and keeps
    it until `close`, so that a later turn computes its new tokens only. The same calls in
    the same order give the same results; what a conversation draws depends on its id,
    its tokens and the weights, not on the others.

    Args:
      model: the scanned decoder.
      params: its parameters. The engine keeps a reference: after an update that donates
        these buffers, call `set_params` before the next `step`. Adapters are merged at each swap.
      slots: conversations in progress at a time.
      context: most tokens of a conversation.
      block: tokens drawn per slot and step.
      stop_token: id that ends a response.
      run_seed: seed of all draws.
      mesh: slots are split over all its axes but "tensor", heads over "tensor", where those divide them.
      cache_dtype: precision of keys and values.
      weight_dtype: "policy": that of the policy's products; "int8": the layers' weights are quantised at each swap. The
        recorded log-probs are those of the quantised policy, which drew.
      on_swap: what `set_params` does with keys and values of the old weights: "reprefill"
        computes them anew, "stale" keeps them and marks the responses.
      on_step: called as every `step` begins; it may swap the weights.
      launching: held while a program is launched: a lock, where another thread launches programs on the same devices.
        Those in which devices wait for each other have to reach all of them in one order.
    """

    def __init__(
        self,
        model: Decoder,
        params: Any,
        *,
        slots: int,
        context: int,
        block: int,
        stop_token: int,
        run_seed: int,
        mesh: jax.sharding.Mesh | None = None,
        cache_dtype: str = "float32",
        weight_dtype: Literal["policy", "int8"] = "policy",
        on_swap: Literal["reprefill", "stale"] = "reprefill",
        on_step: Callable[[], None] | None = None,
        launching: contextlib.AbstractContextManager | None = None,
    ):
        for name, value, least in (("slots", slots, 1), ("context", context, 2), ("block", block, 1)):
            if value < least:
                raise ValueError(f"sampler.{name}={value} is too small; use at least {least}.")
        if on_swap not in ("reprefill", "stale"):
            raise ValueError(f"sampler.on_swap={on_swap!r} is unknown; use 'reprefill' or 'stale'.")
        if weight_dtype not in ("policy", "int8"):
            raise ValueError(f"sampler.weight_dtype={weight_dtype!r} is unknown; use 'policy' or 'int8'.")
        self.counters = Counters()
        self._learned, self._weight_dtype = model.config, weight_dtype
        self._decoder = Decoder(model.config.merged, unrolled=True)
        self._slots = slots
        self._context = context
        self._block = block
        self._stop_token = stop_token
        self._run_key = jax.random.key(run_seed)
        self._mesh, self._cache_dtype = mesh, cache_dtype
        self._on_swap, self._on_step = on_swap, on_step
        self._launching = launching or contextlib.nullcontext()
        self._sharding = None
        if mesh is not None:
            spec = cache_spec(mesh, slots, model.config.num_kv_heads)
            self._sharding = jax.sharding.NamedSharding(mesh, spec)
        # Slots that are split over devices stay where they are, and what is in them, too.
        self._shares = shares(self._sharding)
        self._share = slots // self._shares  # slots of one
        # Rows of a decode call: all slots, half of them, and so on, so that a few busy ones cost little.
        halvings = slots.bit_length() if self._shares == 1 else 1
        self._decode_rows = [slots] + [n for i in range(1, halvings) if (n := -(-slots >> i)) >= _MIN_DECODE]
        if slots == 1 and model.config.dtype == "bfloat16":
            self._decode_rows = [2]  # XLA:CPU multiplies a single bfloat16 row ten times more slowly than two
        self._blocks = 0  # drawn so far
        make = jax.jit(
            lambda: split_layers(init_cache(model.config, slots, context, cache_dtype)), out_shardings=self._sharding
        )
        self._cache = make()
        self._conversations: dict[int, _Conversation] = {}
        self._next_handle = 0
        self._free = sorted(map(self._place, range(slots)))  # a heap: lowest slot first, by turns from each share
        self._waiting: collections.deque[int] = collections.deque()
        self._finished: list[Response] = []
        self._shapes: set[tuple] = set()
        self.set_params(params, 0)

    # ---- the caller's side ----

    @property
    def busy(self) -> bool:
        """Whether a submitted request is unfinished, or its response not yet handed out by `step`."""
        return bool(self._finished) or any(c.request for c in self._conversations.values())

    def take_counters(self) -> Counters:
        """The totals since the last call (`compilations`: since the engine was made)."""
        taken, self.counters = self.counters, Counters(compilations=self.counters.compilations)
        return taken

    @property
    def version(self) -> int:
        """Version of the weights in use."""
        return self._version

    def set_params(self, params: Any, version: int) -> None:
        """Swaps the weights between two steps; tokens drawn from now on carry `version`."""
        self._params = None  # before their successors are made: not everywhere is room for both
        plain = self._learned.lora is None and self._weight_dtype == "policy"
        convert = sampling_params if plain else _converted  # a mere cast copies nothing where nothing changes
        with self._launching:
            # Cut up here: in the decode call it would be done once for every block.
            converted = convert(params, self._learned, self._weight_dtype)
            self._params = unrolled_params(converted, self._learned.num_layers)
        self._version = version
        if self._on_swap == "reprefill":
            for conversation in self._conversations.values():
                conversation.cached = 0

    def open(self, conversation_id: str, sampling: SamplingConfig, group: str | None = None) -> int:
        """Begins a conversation and returns its handle.

        Args:
          conversation_id: seeds the draws; two conversations with one id and the same
            tokens draw the same responses.
          sampling: how to draw.
          group: conversations of one group are searched for a common prefix.
        """
        handle = self._next_handle
        self._next_handle += 1
        tokens = np.zeros(self._context, np.int32)
        self._conversations[handle] = _Conversation(handle, conversation_seed(conversation_id), sampling, group, tokens)
        return handle

    def submit(self, handle: int, tokens: np.ndarray, max_new_tokens: int) -> None:
        """Appends prompt tokens to a conversation and asks for a response of at most `max_new_tokens`.

        Where the prompt leaves no room for a single new token, the response is empty with
        `out_of_context` set, and the prompt is not appended.

        Raises:
          ValueError: the conversation has an unfinished request or no token at all, or
            max_new_tokens < 1.
        """
        c = self._conversations[handle]
        tokens = np.asarray(tokens, np.int32).reshape(-1)
        if c.request is not None:
            raise ValueError(f"Conversation {handle} has an unfinished request; wait for its response.")
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={max_new_tokens} asks for nothing; use at least 1.")
        length = c.length + len(tokens)
        if length == 0:
            raise ValueError(f"Conversation {handle} is empty; submit at least one token.")
        room = self._context - length
        if room < 1:
            nothing = _Request(budget=0, capped=True)
            self._finished.append(self._response(c, nothing))
            return
        c.tokens[c.length : length] = tokens
        c.length = length
        c.request = _Request(budget=min(max_new_tokens, room), capped=max_new_tokens > room)
        if c.slot is None:
            self._waiting.append(handle)

    def length(self, handle: int) -> int:
        """Tokens of the conversation so far, prompts and responses."""
        return self._conversations[handle].length

    def close(self, handle: int) -> None:
        """Ends a conversation, with its unfinished request if any, and frees its slot."""
        c = self._conversations.pop(handle)
        if c.slot is not None:
            heapq.heappush(self._free, self._place(c.slot))
        elif c.request is not None:
            self._waiting.remove(handle)

    def step(self, meanwhile: Callable[[Callable[[], bool]], None] | None = None) -> list[Response]:
        """Admits, prefills, draws one block; returns the finished responses, in the order of their handles.

        Args:
          meanwhile: called once while the block is being drawn, with what tells whether it still is. It may open,
            submit, and close what does not draw.
        """
        if self._on_step is not None:
            self._on_step()
        with jax.set_mesh(self._mesh) if self._mesh is not None else contextlib.nullcontext():
            while self._waiting and self._free:
                within, share = heapq.heappop(self._free)
                self._conversations[self._waiting.popleft()].slot = share * self._share + within
            active = [c for c in self._conversations.values() if c.request is not None and c.slot is not None]
            if active:
                self._prefill(active)
                self._decode(active, meanwhile)
        finished, self._finished = self._finished, []
        return sorted(finished, key=lambda response: response.handle)

    # ---- the device's side ----

    def _share_of(self, slot: int) -> int:
        return slot // self._share

    def _place(self, slot: int) -> tuple[int, int]:
        """(number of a slot within its share, number of the share)."""
        return slot % self._share, self._share_of(slot)

    def _window(self, length: int) -> int:
        """The power of two that covers `length` cache positions, within the context."""
        return min(self._context, max(_MIN_WINDOW, 1 << (length - 1).bit_length()))

    def _count_shape(self, *shape: Any) -> None:
        self._shapes.add(shape)
        self.counters.compilations = len(self._shapes)

    def _prefill(self, active: list[_Conversation]) -> None:
        """Brings the rows of all active conversations up to their last token but one."""
        begin = time.perf_counter()
        todo = [c for c in active if c.pending > 0]
        if not todo:
            return
        # Where several rows of a group are to be filled, the first is computed and the others copy from it. Each share
        # of the slots does so for itself: they compute at the same time anyway, and would have to send what is copied.
        donors = self._donors(todo)
        self._compute([c for c in todo if c.handle not in donors])
        copies = []
        for c in todo:
            donor = donors.get(c.handle)
            if donor is not None:
                shared = common_prefix(c.tokens[: c.length - 1], donor.tokens[: donor.cached])
                copies.append((donor.slot, c.slot, shared))
                c.cached, c.cache_version = shared, donor.cache_version
                self.counters.copied_tokens += shared
        self._copy(copies)
        self._compute([c for c in todo if c.handle in donors])
        jax.block_until_ready(self._cache)
        self.counters.prefill_seconds += time.perf_counter() - begin

    def _donors(self, todo: list[_Conversation]) -> dict[int, _Conversation]:
        """For each conversation that can save work by it, the member of its group to copy a prefix from.

        A donor has been computed with the present weights already, or is itself on the list
        without a donor of its own.
        """
        members: dict[tuple, list[_Conversation]] = collections.defaultdict(list)
        for c in self._conversations.values():
            if c.group is not None and c.cached and c.cache_version == self._version:
                members[c.group, self._share_of(c.slot)].append(c)
        donors = {}
        for c in todo:
            if c.group is None or c.cached:
                continue
            best, best_shared = None, _MIN_SHARED - 1
            near = members[c.group, self._share_of(c.slot)]
            for other in near:
                usable = other.length - 1 if other.request is not None else other.cached
                shared = common_prefix(c.tokens[: c.length - 1], other.tokens[:usable])
                if shared > best_shared:
                    best, best_shared = other, shared
            if best is not None:
                donors[c.handle] = best
            else:
                near.append(c)
        return donors

    def _compute(self, todo: list[_Conversation]) -> None:
        """Prefills in chunks; rows with about the same number of pending tokens share a call."""
        while todo := [c for c in todo if c.pending > 0]:
            by_chunk: dict[int, list[_Conversation]] = collections.defaultdict(list)
            for c in todo:
                by_chunk[_bucket(c.pending, _CHUNKS)].append(c)
            for chunk, rows in sorted(by_chunk.items()):
                window = self._window(max(c.cached + min(c.pending, chunk) for c in rows))
                sizes = prefill_rows(self._decoder.config, self._shares, self._cache_dtype, chunk, window)
                for count, part in self._calls(rows, [c.slot for c in rows], sizes):
                    self._compute_chunk(part, count, chunk)

    def _calls(
        self, items: list[Any], slots: list[int], sizes: tuple[int, ...]
    ) -> Iterator[tuple[int, dict[int, Any]]]:
        """Cuts what is to be done, each in its slot, into calls: (rows in each share of the slots, {row: item})."""
        queues: list[list[Any]] = [[] for _ in range(self._shares)]
        for item, slot in zip(items, slots, strict=True):
            queues[self._share_of(slot)].append(item)
        while longest := max(map(len, queues)):
            count = _bucket(longest, sizes)
            yield count, {
                share * count + i: item for share, queue in enumerate(queues) for i, item in enumerate(queue[:count])
            }
            queues = [queue[count:] for queue in queues]

    def _padding(self, count: int) -> np.ndarray:
        """int32[R] slots of a call with `count` rows in each share, past the share's end as yet."""
        return np.tile(np.arange(self._share, self._share + count, dtype=np.int32), self._shares)

    def _compute_chunk(self, rows: dict[int, _Conversation], count: int, chunk: int) -> None:
        slots = self._padding(count)
        tokens = np.zeros((len(slots), chunk), np.int32)
        starts, counts = np.zeros_like(slots), np.zeros_like(slots)
        for i, c in rows.items():
            n = min(c.pending, chunk)
            tokens[i, :n] = c.tokens[c.cached : c.cached + n]
            slots[i], starts[i], counts[i] = c.slot % self._share, c.cached, n
            c.cache_version = min(c.cache_version, self._version) if c.cached else self._version
            c.cached += n
            self.counters.prefilled_tokens += n
        window = self._window(int(np.max(starts + counts)))
        self._count_shape("prefill", count, chunk, window)
        chunk_arrays = tokens, slots, starts, counts
        with self._launching:
            self._cache = prefill(
                self._decoder, self._params, self._cache, *chunk_arrays, window=window, sharding=self._sharding
            )

    def _copy(self, copies: list[tuple[int, int, int]]) -> None:
        for count, part in self._calls(copies, [target for _, target, _ in copies], _row_sizes(self._shares)):
            targets = self._padding(count)
            sources = np.zeros_like(targets)
            for i, (source, target, _) in part.items():
                sources[i], targets[i] = source % self._share, target % self._share
            window = self._window(max(shared for _, _, shared in part.values()))
            self._count_shape("copy", count, window)
            with self._launching:
                self._cache = copy_rows(self._cache, sources, targets, window=window, sharding=self._sharding)

    def _rows(self, active: int) -> int:
        """Rows of the next decode call: as few as hold all who are to draw, or fewer where these would not be full."""
        enough = min(rows for rows in self._decode_rows if rows >= active)
        fewer = max((rows for rows in self._decode_rows if _WORTH_WAITING <= rows < enough), default=enough)
        return enough if active >= _FULL * enough else fewer

    def _decode(self, active: list[_Conversation], meanwhile: Callable | None) -> None:
        """Draws one block and gives its tokens to their conversations."""
        begin = time.perf_counter()
        self._blocks += 1
        count = self._rows(len(active))
        # Those who have waited longest; the rest keep their slots and have precedence the next time.
        active = sorted(active, key=lambda c: (c.drew, c.handle))[:count]
        window = self._window(max(c.length - 1 + min(c.request.left, self._block) for c in active))
        if self._shares > 1 or (count == self._slots and window == self._context):
            slots, row = None, {c.handle: c.slot for c in active}
        else:
            slots = np.arange(self._slots, self._slots + count, dtype=np.int32)  # beyond the cache: padding
            row = {c.handle: i for i, c in enumerate(active)}
            slots[: len(active)] = [c.slot for c in active]
        settings = [SamplingConfig()] * count
        token, position, remaining = (np.zeros(count, np.int32) for _ in range(3))
        seed = np.zeros((count, 2), np.uint32)
        for c in active:
            r = row[c.handle]
            c.drew = self._blocks
            settings[r], seed[r] = c.sampling, c.seed
            token[r], position[r] = c.tokens[c.length - 1], c.length - 1
            remaining[r] = c.request.left
        self._count_shape("decode", count, window)
        state = SlotState(token, position, remaining, seed, pack(settings))
        with self._launching:
            self._cache, tokens, logps = decode_block(
                self._decoder,
                self._params,
                self._cache,
                state,
                slots,
                self._run_key,
                self._stop_token,
                math.ceil(_BUSY * len(active)),
                steps=self._block,
                window=window,
                sharding=self._sharding,
            )
        if meanwhile is not None:
            meanwhile(lambda: not tokens.is_ready())
        tokens, logps = np.asarray(tokens), np.asarray(logps)
        drawn_R = np.sum(tokens >= 0, axis=1)
        for c in active:
            r = row[c.handle]
            self._extend(c, tokens[r, : drawn_R[r]], logps[r, : drawn_R[r]])
        self.counters.sampled_tokens += int(drawn_R.sum())
        self.counters.slot_steps += int(drawn_R.max()) * count
        self.counters.decode_seconds += time.perf_counter() - begin

    def _extend(self, c: _Conversation, tokens: np.ndarray, logps: np.ndarray) -> None:
        request = c.request
        n = len(tokens)
        c.tokens[c.length : c.length + n] = tokens
        c.length += n
        # Each draw wrote the token it was drawn from; the last one drawn is not in the cache.
        if c.cached > 0 and c.cache_version < self._version:
            request.stale = True
            self.counters.stale_tokens += n
        c.cache_version = min(c.cache_version, self._version) if c.cached else self._version
        c.cached = c.length - 1
        request.tokens.extend(tokens.tolist())
        request.logp.extend(logps.tolist())
        request.versions.extend([self._version] * n)
        if request.tokens[-1] == self._stop_token or len(request.tokens) == request.budget:
            self._finished.append(self._response(c, request))
            c.request = None

    def _response(self, c: _Conversation, request: _Request) -> Response:
        stopped = bool(request.tokens) and request.tokens[-1] == self._stop_token
        return Response(
            handle=c.handle,
            tokens=np.array(request.tokens, np.int32),
            logp=np.array(request.logp, np.float32),
            versions=np.array(request.versions, np.int32),
            stopped=stopped,
            out_of_context=request.capped and not stopped,
            stale_cache=request.stale,
        )
