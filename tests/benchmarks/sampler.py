"""The sampler: `python tests/benchmarks/sampler.py [--network=smollm2] [--parts=decode,...] [--json=FILE]`.

Sides take turns in one process on the same weights, prompts, lengths and precision. Peers come from the extra
[benchmark]; one that is not installed is left out, and said to be.

    decode   tokens a second behind a prompt, greedy, by batch and precision, against transformers' `generate`
    draw     what drawing a token takes of a decode step
    limit    what a context limit of 4,096 costs where 256 tokens are live
    prefix   first tokens of a group that shares a prompt, against the same without sharing
    turns    conversations of several turns with replies of uneven length and latency, against `generate` for each turn
"""

from __future__ import annotations

import functools
import heapq
import itertools
import time

import harness
import jax
import networks
import numpy as np

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


def respond(sampler: Engine, tokens_BxP: np.ndarray, new: int, group: str | None = None) -> None:
    """One response of `new` tokens to every prompt."""
    for tokens in tokens_BxP:
        sampler.submit(sampler.open(f"c{next(ids)}", GREEDY, group), tokens, new)
    while sampler.busy:
        for response in sampler.step():
            sampler.close(response.handle)


def decode(record: harness.Record, name: str, dtype: str, batch: int) -> None:
    """Tokens a second without the prefill: between the first token and the last."""
    tokens = prompts(batch, PROMPT, networks.NETWORKS[name].vocab_size)

    def turn(respond_with) -> harness.Turn:
        return lambda: rate(lambda new: respond_with(tokens, new), batch)

    sides = {harness.OURS: turn(functools.partial(respond, engine(name, dtype, batch, 256)))}
    if dtype == "bfloat16":
        int8 = engine(name, dtype, batch, 256, weight_dtype="int8")
        sides["ours, int8 weights"] = turn(functools.partial(respond, int8))
    if networks.has_peers():
        sides["transformers"] = turn(functools.partial(generate, networks.transformers_network(name, dtype)))
    record.compare(f"decode {name} {dtype}, batch {batch}", "tokens/s", sides)


def rate(run, batch: int) -> float:
    """Tokens a second of `run(new tokens)`, with what it takes up to the first token taken off."""
    short = harness.timed(lambda: run(1))
    return batch * GENERATED / (harness.timed(lambda: run(1 + GENERATED)) - short)


def generate(peer, tokens_BxP: np.ndarray, new: int) -> np.ndarray:
    """Greedy continuation by transformers; int[B, P + new]."""
    import torch

    with torch.inference_mode():
        out = peer.generate(
            torch.from_numpy(tokens_BxP).long(), attention_mask=torch.ones(tokens_BxP.shape, dtype=torch.long),
            max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
        )  # fmt: skip
    return out.numpy()


def drawing(record: harness.Record, name: str, batch: int) -> None:
    model, _ = networks.network(name)
    logits = jax.random.normal(jax.random.key(1), (batch, model.config.vocab_size)) * 3
    uniform = jax.random.uniform(jax.random.key(2), (batch,))
    sampler, tokens = engine(name, "float32", batch, 256), prompts(batch, PROMPT, model.config.vocab_size)
    respond(sampler, tokens, 1 + GENERATED)
    step = batch / max(rate(lambda new: respond(sampler, tokens, new), batch) for _ in range(3))
    for label, config in (
        ("temperature", SamplingConfig(temperature=0.7)),
        ("temperature, top-p", SamplingConfig(temperature=0.7, top_p=0.95)),
    ):
        seconds = harness.best(functools.partial(networks.done, jax.jit(draw), logits, pack([config] * batch), uniform))
        record.one(f"draw {name}, batch {batch}, {label}", 100 * seconds / step, "% of a decode step")


def limit(record: harness.Record, name: str, batch: int = 8) -> None:
    tokens = prompts(batch, 256 - GENERATED - 1, networks.NETWORKS[name].vocab_size)
    samplers = {context: engine(name, "float32", batch, context) for context in (4096, 512)}
    record.compare(
        f"decode {name}, 256 live tokens, by context limit",
        "tokens/s",
        {
            f"limit {context}": lambda s=sampler: rate(lambda new: respond(s, tokens, new), batch)
            for context, sampler in samplers.items()
        },
    )


def prefix(record: harness.Record, name: str, members: int = 16, length: int = 512) -> None:
    shared = np.repeat(prompts(1, length, networks.NETWORKS[name].vocab_size), members, axis=0)
    sampler = engine(name, "float32", members, 1024)
    record.compare(
        f"first tokens {name}, {members} x one prompt of {length}",
        "1/s",
        {
            "shared": lambda: 1 / harness.timed(lambda: respond(sampler, shared, 1, group=f"g{next(ids)}")),
            "not shared": lambda: 1 / harness.timed(lambda: respond(sampler, shared, 1)),
        },
    )


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

    def ours(self, sampler: Engine) -> float:
        began = time.perf_counter()
        handles, turn = {}, {}
        due = [(0.0, c) for c in range(self.conversations)]
        while due or sampler.busy:
            now = time.perf_counter() - began
            if due and not sampler.busy and due[0][0] > now:
                time.sleep(due[0][0] - now)
                now = due[0][0]
            while due and due[0][0] <= now:
                _, c = heapq.heappop(due)
                if c not in turn:
                    handle, turn[c] = sampler.open(f"c{next(ids)}", GREEDY), 0
                    handles[c] = handle
                sampler.submit(handles[c], self.prompts[turn[c]][c], int(self.new[turn[c], c]))
            of = {handle: c for c, handle in handles.items()}
            for response in sampler.step():
                c = of[response.handle]
                turn[c] += 1
                if turn[c] == self.turns:
                    sampler.close(handles.pop(c))
                else:
                    heapq.heappush(due, (time.perf_counter() - began + self.latency[turn[c] - 1, c], c))
        return self.tokens / (time.perf_counter() - began)

    def by_generate(self, peer) -> float:
        """A batch for each turn: the whole history again, padded on the left, up to the longest response."""
        import torch

        began = time.perf_counter()
        history = [np.zeros(0, np.int32)] * self.conversations
        for t in range(self.turns):
            history = [np.concatenate([h, p]) for h, p in zip(history, self.prompts[t], strict=True)]
            longest, new = max(map(len, history)), int(self.new[t].max())
            padded, mask = np.zeros((2, self.conversations, longest), np.int64)
            for row, h in enumerate(history):
                padded[row, longest - len(h) :], mask[row, longest - len(h) :] = h, 1
            with torch.inference_mode():
                out = peer.generate(
                    torch.from_numpy(padded), attention_mask=torch.from_numpy(mask),
                    max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0,
                ).numpy()  # fmt: skip
            history = [
                np.concatenate([h, row[longest : longest + n].astype(np.int32)])
                for h, row, n in zip(history, out, self.new[t], strict=True)
            ]
            if t + 1 < self.turns:
                time.sleep(float(self.latency[t].max()))
        return self.tokens / (time.perf_counter() - began)


def turns(record: harness.Record, name: str, conversations: int) -> None:
    talk = Talk(networks.NETWORKS[name].vocab_size, conversations, turns=6)
    sampler = engine(name, "float32", conversations, 1024, block=4)
    sides = {harness.OURS: lambda: talk.ours(sampler)}
    if networks.has_peers():
        sides["transformers"] = lambda: talk.by_generate(networks.transformers_network(name, "float32"))
    record.compare(f"{conversations} conversations of 6 turns, {name} float32", "tokens/s", sides)


def main() -> None:
    options = harness.arguments(
        __doc__,
        network=dict(default="smollm2", choices=tuple(networks.NETWORKS)),
        parts=dict(default="decode,draw,limit,prefix,turns"),
        batches=dict(default="1,8,32", help="of decode"),
        dtypes=dict(default="float32,bfloat16", help="of decode"),
        conversations=dict(type=int, default=16, help="of turns"),
    )
    record, name = harness.Record(options, networks.limits()), options.network
    batches = [int(batch) for batch in options.batches.split(",")]
    parts = {
        "decode": lambda: [decode(record, name, d, b) for d in options.dtypes.split(",") for b in batches],
        "draw": lambda: drawing(record, name, max(batches)),
        "limit": lambda: limit(record, name),
        "prefix": lambda: prefix(record, name),
        "turns": lambda: turns(record, name, options.conversations),
    }
    for part in options.parts.split(","):
        parts[part]()


if __name__ == "__main__":
    main()
