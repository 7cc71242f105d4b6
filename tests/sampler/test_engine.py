"""The engine against teacher forcing, and its promises about slots, seeds, versions and room."""

from __future__ import annotations

import dataclasses
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import Decoder, DecoderConfig, init_params, quantize_params
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.sampler import engine as engine_module
from spade_jax.sampler.engine import common_prefix, conversation_seed

CONFIG = DecoderConfig(vocab_size=40, embed_dim=24, num_layers=2, num_heads=4, num_kv_heads=2, head_dim=6, mlp_dim=32)
MODEL = Decoder(CONFIG)
CONTEXT = 64
STOP = 1
GREEDY = SamplingConfig(temperature=0)


@functools.cache
def weights(seed: int = 0):
    # Embeddings of unit scale make the distributions far from uniform.
    params = init_params(MODEL, jax.random.key(seed))
    return params | {"embedding": params["embedding"] * 30}


@jax.jit
def _teacher(params, tokens_T):
    hidden, _ = MODEL.apply({"params": params}, tokens_T[None], jnp.arange(CONTEXT)[None])
    return MODEL.apply({"params": params}, hidden, method="head")[0]


def teacher_logits(tokens: np.ndarray, params=None) -> np.ndarray:
    """float32[T, V] of a full forward pass without cache."""
    padded = np.zeros(CONTEXT, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(_teacher(weights() if params is None else params, padded))[: len(tokens)]


def log_softmax(z: np.ndarray) -> np.ndarray:
    """In NumPy: JAX would compile it anew for every length."""
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def engine(slots=3, **options) -> Engine:
    options = {"context": CONTEXT, "block": 4, "stop_token": STOP, "run_seed": 0} | options
    return Engine(MODEL, weights(), slots=slots, **options)


def run(e: Engine, close: bool = False) -> dict[int, object]:
    done = {}
    while e.busy:
        for response in e.step():
            done[response.handle] = response
            if close:
                e.close(response.handle)
    return done


def prompt(seed: int, length: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, CONFIG.vocab_size, length).astype(np.int32)


def check_against_teacher(history: np.ndarray, response, temperature=1.0, params=None) -> None:
    whole = np.concatenate([history, response.tokens])
    logp = log_softmax(teacher_logits(whole, params) / temperature)
    at = np.arange(len(history), len(whole))
    np.testing.assert_allclose(response.logp, logp[at - 1, whole[at]], atol=1e-5)


@pytest.mark.parametrize("slots", [3, 40])  # with 40, calls of 20 and 10 rows and padding rows among them
def test_multi_turn_conversations_equal_teacher_forcing_under_slot_reuse(slots):
    e = engine(slots=slots)
    sampling = SamplingConfig(temperature=0.9)
    history, turns = {}, {}
    lengths = (1, 5, 9, 33, 2, 17, 34)  # uneven, one prompt of a single token
    for i in range(2 * len(lengths)):  # more conversations than slots, or fewer than half
        handle = e.open(f"c{i}", sampling)
        history[handle], turns[handle] = prompt(i, lengths[i % 7]), 0
        e.submit(handle, history[handle], 3 + i)
    while e.busy:
        for r in e.step():
            check_against_teacher(history[r.handle], r, 0.9)
            history[r.handle] = np.concatenate([history[r.handle], r.tokens])
            assert e.length(r.handle) == len(history[r.handle])
            turns[r.handle] += 1
            if turns[r.handle] == 3 or r.out_of_context:
                e.close(r.handle)
            else:
                reply = prompt(100 + r.handle, turns[r.handle])
                history[r.handle] = np.concatenate([history[r.handle], reply])
                e.submit(r.handle, reply, 5)
    assert all(n >= 2 for n in turns.values())
    # Every prompt token is computed once, but for the last of each first prompt: the decode step feeds it.
    prompts = sum(map(len, history.values())) - e.counters.sampled_tokens
    assert e.counters.prefilled_tokens == prompts - len(history)


def test_greedy_equals_top_1_of_teacher_forcing():
    e = engine()
    handles = [e.open(f"g{i}", GREEDY) for i in range(3)]
    prompts = [prompt(i, 4 + i) for i in range(3)]
    for handle, tokens in zip(handles, prompts, strict=True):
        e.submit(handle, tokens, 10)
    for handle, r in run(e).items():
        whole = np.concatenate([prompts[handle], r.tokens])
        best = teacher_logits(whole).argmax(-1)
        np.testing.assert_array_equal(r.tokens, best[len(prompts[handle]) - 1 : -1])
        assert (r.logp == 0).all()


def test_int8_weights_are_requantised_at_each_swap_and_their_log_probs_are_recorded():
    def teacher(seed):
        """The policy that is drawn from: weights rounded to 127 steps of their channel's largest."""
        rounded = quantize_params(weights(seed), "float32")

        def plain(part):
            names = [name for name in part if not name.endswith("_scale")]
            return {
                name: plain(part[name])
                if isinstance(part[name], dict)
                else part[name] * part.get(f"{name}_scale", 1.0)
                for name in names
            }

        return plain(rounded)

    e = engine(weight_dtype="int8", block=5)
    handle = e.open("a", SamplingConfig())
    e.submit(handle, prompt(1, 9), 10)
    assert e.step() == []
    e.set_params(weights(1), 1)
    done = run(e)[handle]
    whole = np.concatenate([prompt(1, 9), done.tokens])
    for seed, part in ((0, slice(0, 5)), (1, slice(5, None))):
        at = np.arange(9, len(whole))[part]
        logp = log_softmax(teacher_logits(whole, teacher(seed)))
        np.testing.assert_allclose(done.logp[part], logp[at - 1, whole[at]], atol=1e-4)
    full = log_softmax(teacher_logits(whole, weights(1)))[at - 1, whole[at]]
    assert 1e-4 < np.abs(done.logp[part] - full).max() < 0.5  # near the policy, and not it


def test_a_shared_prefix_is_computed_once_and_changes_nothing():
    shared = prompt(0, 30)
    prompts = [np.concatenate([shared, [2 + i], prompt(10 + i, i)]) for i in range(5)]
    results, computed = [], []
    for group in (None, "g"):
        e = engine(slots=3)  # the others wait and copy from a conversation in progress
        handles = [e.open(f"c{i}", SamplingConfig(), group) for i in range(5)]
        for handle, tokens in zip(handles, prompts, strict=True):
            e.submit(handle, tokens, 6)
        done = {}
        while e.busy:
            for r in e.step():
                done[r.handle] = r
                check_against_teacher(prompts[r.handle], r)
                if r.handle in (0, 3):
                    e.close(r.handle)
        results.append([done[h].tokens.tolist() for h in handles])
        computed.append(e.counters.prefilled_tokens)
        assert e.counters.copied_tokens == (4 * 30 if group else 0)
    assert results[0] == results[1]
    assert computed[0] - computed[1] == 4 * 30


def test_draws_depend_on_neither_slot_batch_nor_block():
    tokens = prompt(3, 8)

    def response_of_c(before, slots, block):
        e = engine(slots=slots, block=block)
        for i in range(before):
            e.submit(e.open(f"other{i}", SamplingConfig(temperature=1.3)), prompt(50 + i, 3 + i), 9)
        handle = e.open("c", SamplingConfig())
        e.submit(handle, tokens, 12)
        return run(e, close=True)[handle].tokens.tolist()

    assert response_of_c(0, 3, 4) == response_of_c(2, 3, 4) == response_of_c(2, 1, 4) == response_of_c(1, 3, 7)


def test_ids_and_run_seeds_change_draws_and_the_same_calls_repeat_exactly():
    def all_of(run_seed):
        e = engine(run_seed=run_seed)
        for name in ("a", "b", "a"):
            e.submit(e.open(name, SamplingConfig(temperature=2.0)), prompt(1, 6), 10)
        return run(e)

    first, again, other = all_of(0), all_of(0), all_of(1)
    for handle in first:
        np.testing.assert_array_equal(first[handle].tokens, again[handle].tokens)
        np.testing.assert_array_equal(first[handle].logp, again[handle].logp)
    assert first[0].tokens.tolist() == first[2].tokens.tolist() != first[1].tokens.tolist()
    assert first[0].tokens.tolist() != other[0].tokens.tolist()


def test_stop_token_ends_a_response_and_the_conversation_can_go_on():
    tokens = prompt(2, 5)
    e = engine()
    probe = e.open("probe", GREEDY)
    e.submit(probe, tokens, 8)
    greedy = run(e)[probe].tokens
    stop = int(greedy[3])
    first = greedy.tolist().index(stop)
    e = engine(stop_token=stop)
    handle = e.open("x", GREEDY)
    e.submit(handle, tokens, 8)
    r = run(e)[handle]
    assert r.stopped and not r.out_of_context
    np.testing.assert_array_equal(r.tokens, greedy[: first + 1])
    e.submit(handle, np.array([], np.int32), 3)  # no new prompt: simply goes on
    history = np.concatenate([tokens, r.tokens])
    follow = run(e)[handle]
    np.testing.assert_array_equal(
        follow.tokens, teacher_logits(np.concatenate([history, follow.tokens])).argmax(-1)[len(history) - 1 : -1]
    )


@pytest.mark.parametrize("on_swap", ["reprefill", "stale"])
def test_swapped_weights_stamp_versions_and_the_cache_follows(on_swap):
    e = engine(on_swap=on_swap)
    handle = e.open("c", SamplingConfig())
    tokens = prompt(4, 7)
    e.submit(handle, tokens, 10)
    assert e.step() == []
    e.set_params(weights(1), 5)
    r = run(e)[handle]
    n = len(r.tokens)
    assert r.versions.tolist() == [0] * 4 + [5] * (n - 4)
    assert r.stale_cache == (on_swap == "stale")
    assert e.counters.stale_tokens == (n - 4 if on_swap == "stale" else 0)
    whole = np.concatenate([tokens, r.tokens])
    new = log_softmax(teacher_logits(whole, weights(1)))
    at = np.arange(len(tokens) + 4, len(whole))
    error = np.abs(r.logp[4:] - new[at - 1, whole[at]]).max()
    assert error < 1e-5 if on_swap == "reprefill" else error > 1e-3
    # The next turn after a swap: nothing is stale any more where rows are computed anew.
    e.set_params(weights(0), 6)
    e.submit(handle, prompt(5, 3), 4)
    again = run(e)[handle]
    assert again.versions.tolist() == [6] * len(again.tokens)
    assert again.stale_cache == (on_swap == "stale")
    if on_swap == "reprefill":
        check_against_teacher(np.concatenate([whole, prompt(5, 3)]), again)


def test_weights_may_be_swapped_as_a_step_begins():
    news = [None, weights(1), None]
    e = engine(on_step=lambda: (new := news.pop(0) if news else None) and e.set_params(new, 1))
    handle = e.open("c", SamplingConfig())
    tokens = prompt(4, 7)
    e.submit(handle, tokens, 10)
    r = run(e)[handle]
    assert r.versions.tolist() == [0] * 4 + [1] * (len(r.tokens) - 4)
    assert e.counters.stale_tokens == 0
    by_hand = engine()
    again = by_hand.open("c", SamplingConfig())
    by_hand.submit(again, tokens, 10)
    by_hand.step()
    by_hand.set_params(weights(1), 1)
    np.testing.assert_array_equal(run(by_hand)[again].logp, r.logp)


def test_out_of_context():
    e = engine(stop_token=-5)  # never drawn
    handle = e.open("c", SamplingConfig())
    e.submit(handle, prompt(0, CONTEXT - 6), 10)
    r = run(e)[handle]
    assert len(r.tokens) == 6 and r.out_of_context and not r.stopped
    check_against_teacher(prompt(0, CONTEXT - 6), r)
    e.submit(handle, prompt(1, 2), 4)
    r = run(e)[handle]
    assert len(r.tokens) == len(r.logp) == len(r.versions) == 0 and r.out_of_context
    assert e.length(handle) == CONTEXT
    exact = e.open("d", SamplingConfig())
    e.submit(exact, prompt(0, CONTEXT - 6), 6)  # fits to the last token
    assert not run(e)[exact].out_of_context


def test_close_frees_slots_and_drops_waiting_requests():
    e = engine(slots=1)
    a, b, c = (e.open(name, GREEDY) for name in "abc")
    for handle in (a, b, c):
        e.submit(handle, prompt(handle, 4), 20)
    assert e.step() == []
    e.close(b)  # waiting
    e.close(a)  # in its slot, unfinished
    assert set(run(e)) == {c}
    assert e.step() == [] and not e.busy
    assert 0 < e.counters.occupancy <= 1


def test_rows_that_would_be_idle_are_not_computed_and_everyone_has_a_turn():
    e = engine(slots=40, stop_token=-5)  # calls of 40, 20 and 10 rows; nothing stops early
    handles = [e.open(f"c{i}", SamplingConfig()) for i in range(26)]
    for i, handle in enumerate(handles):
        e.submit(handle, prompt(i, 3), 9)
    assert e.step() == e.step() == []
    # Neither 40 rows for 26, nor the first 20 twice.
    assert [e.length(handle) - 3 for handle in handles] == [8 - 4 * (14 <= i < 26) for i in range(26)]
    assert e.counters.slot_steps == e.counters.sampled_tokens == 2 * 20 * 4


@pytest.mark.parametrize("busy, rows", [(2, 3), (3, 3), (4, 6), (6, 6), (7, 12)])
def test_a_few_compute_few_rows_and_nobody_waits_for_them(busy, rows):
    e = engine(slots=12, stop_token=-5)
    handles = [e.open(f"c{i}", SamplingConfig()) for i in range(busy)]
    for i, handle in enumerate(handles):
        e.submit(handle, prompt(i, 3), 9)
    e.step()
    assert [e.length(handle) for handle in handles] == [3 + 4] * busy
    assert e.counters.slot_steps == 4 * rows


def test_a_single_bfloat16_row_has_company():
    def decoded(dtype: str) -> tuple[list[int], int]:
        model = Decoder(dataclasses.replace(CONFIG, dtype=dtype))
        e = Engine(model, weights(), slots=1, context=CONTEXT, block=4, stop_token=-1, run_seed=0)
        handle = e.open("alone", GREEDY)
        e.submit(handle, prompt(7, 9), 8)
        return run(e)[handle].tokens.tolist(), e.counters.slot_steps

    (one, rows), (other, twice) = decoded("float32"), decoded("bfloat16")
    assert (rows, twice) == (8, 16)
    assert one[0] == other[0] and len(one) == len(other) == 8


def test_a_block_ends_where_many_of_its_rows_are_idle():
    e = engine(slots=10, stop_token=-5)
    for i in range(10):
        e.submit(e.open(f"c{i}", SamplingConfig()), prompt(i, 3), 1 if i < 4 else 3)
    assert len(e.step()) == 4 and e.counters.slot_steps == 10  # not 3 steps of them, with 6 rows at work in the last 2
    assert len(e.step()) == 6 and e.counters.slot_steps == 10 + 2 * 10


def test_misuse_is_refused():
    e = engine()
    handle = e.open("a", GREEDY)
    with pytest.raises(ValueError, match="is empty"):
        e.submit(handle, np.array([], np.int32), 4)
    with pytest.raises(ValueError, match="max_new_tokens=0"):
        e.submit(handle, prompt(0, 3), 0)
    e.submit(handle, prompt(0, 3), 4)
    with pytest.raises(ValueError, match="unfinished request"):
        e.submit(handle, prompt(0, 3), 4)
    with pytest.raises(ValueError, match="sampler.slots=0"):
        engine(slots=0)
    with pytest.raises(ValueError, match="sampler.on_swap='keep'"):
        engine(on_swap="keep")


def test_windows_of_the_cache_change_nothing(monkeypatch):
    def all_of(smallest):
        monkeypatch.setattr("spade_jax.sampler.engine._MIN_WINDOW", smallest)
        e = engine()
        out = []
        for turn in range(2):  # rows grow through windows of 16, 32 and 64
            for i in range(3):
                handle = e.open(f"c{i}", SamplingConfig(), "g") if turn == 0 else i
                e.submit(handle, np.concatenate([prompt(9, 17 * (turn == 0)), prompt(i + turn, 1 + 3 * i)]), 8)
            done = run(e)
            out += [(done[i].tokens.tolist(), done[i].logp) for i in range(3)]
        return out, e.counters

    (small, counted), (whole, _) = all_of(16), all_of(64)
    assert counted.compilations > 4 and counted.copied_tokens >= 2 * 17
    for (tokens_a, logp_a), (tokens_b, logp_b) in zip(small, whole, strict=True):
        assert tokens_a == tokens_b
        np.testing.assert_allclose(logp_a, logp_b, atol=1e-5)


def test_few_shapes_are_compiled():
    e = engine(slots=3)
    for i in range(8):
        handle = e.open(f"c{i}", GREEDY)
        e.submit(handle, prompt(i, 2 + 5 * i), 6)
    while e.busy:
        for r in e.step():
            e.close(r.handle)
    # Prefills of 16 tokens in four rows and in one, of 64 in one; one decode.
    assert e._shapes == {("prefill", 4, 16, 64), ("prefill", 1, 16, 64), ("prefill", 1, 64, 64), ("decode", 3, 64)}
    assert e.counters.compilations == 4


def test_helpers_by_hand():
    assert common_prefix(np.array([1, 2, 3]), np.array([1, 2, 4, 5])) == 2
    assert common_prefix(np.array([1, 2]), np.array([1, 2, 4])) == 2
    assert common_prefix(np.array([], int), np.array([1])) == 0
    # sha256("") begins e3b0c442 98fc1c14.
    assert conversation_seed("").tolist() == [0xE3B0C442, 0x98FC1C14]


def test_every_program_is_launched_under_the_lock(monkeypatch):
    """Another thread's come before or after it on all devices."""
    lock, seen = threading.Lock(), set()

    def watched(name, function):
        def launch(*args, **kwargs):
            assert lock.locked()
            seen.add(name)
            return function(*args, **kwargs)

        return launch

    programs = ("prefill", "copy_rows", "decode_block", "_converted", "unrolled_params")
    for name in programs:
        monkeypatch.setattr(engine_module, name, watched(name, getattr(engine_module, name)))
    e = engine(launching=lock, weight_dtype="int8")  # of weights that are split, the largest is sought on all devices
    for i in range(3):
        e.submit(e.open(f"c{i}", GREEDY, group="g"), prompt(7, 20), 4)
    run(e)
    assert seen == set(programs) and not lock.locked()
