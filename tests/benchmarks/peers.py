"""What the sampler is compared with, on the same weights: transformers, google-tunix and llama.cpp.

They come from the extra [benchmark]. One that is not installed is left out, and said to be. Each continues prompts
greedily, `(tokens_BxP, new, mark) -> int[B, new]`, and calls `mark` when it has computed the prompts.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import json
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import networks
import numpy as np

from spade_jax.policy import huggingface, safetensors, weights

LLAMA_BATCH = 2048  # tokens of one call of llama.cpp at most
_MODULES = {
    "transformers": ("torch", "transformers"),
    "tunix": ("tunix",),
    "llama.cpp": ("llama_cpp", "gguf"),
}


@functools.cache
def has(peer: str) -> bool:
    """Whether a peer's packages are installed; says so where they are not."""
    missing = [name for name in _MODULES[peer] if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{peer}: {' and '.join(missing)} not installed, that side is left out", flush=True)
    return not missing


@contextlib.contextmanager
def published(name: str, dtype: str = "float32") -> Iterator[pathlib.Path]:
    """A Hugging Face folder with a network's weights."""
    config = networks.NETWORKS[name]
    _, params = networks.network(name)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder)
        safetensors.write_folder(path, dict(weights.exported(params, config)), "float32", 10**10)
        settings = huggingface.to_huggingface(config, context=8192, dtype=dtype)
        (path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        yield path


@functools.cache
def transformers_network(name: str, dtype: str) -> Any:
    """A network as transformers' own implementation runs it."""
    import torch
    import transformers

    torch.set_num_threads(networks.threads())
    with published(name) as path:
        return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, dtype)).eval()


def generate(network: Any, tokens_BxP: np.ndarray, new: int, mark: Callable[[], None]) -> np.ndarray:
    """By transformers."""
    import torch

    def seen(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == tokens_BxP.shape[1]:
            mark()
        return scores

    with torch.inference_mode():
        out = network.generate(
            torch.from_numpy(tokens_BxP).long(), attention_mask=torch.ones(tokens_BxP.shape, dtype=torch.long),
            max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0, logits_processor=[seen],
        )  # fmt: skip
    return out.numpy()[:, tokens_BxP.shape[1] :]


class _Numbers:
    """A tokenizer for texts that are token ids already; no text has the id 0, which fills rows, nor the stop token."""

    def encode(self, text: str, **_: Any) -> list[int]:
        return [int(word) for word in text.split()]

    def decode(self, ids: list[int], **_: Any) -> str:
        return ""

    def pad_id(self) -> int:
        return 0

    def bos_id(self) -> int | None:
        return None

    def eos_id(self) -> int:
        return -1


class Tunix:
    """google-tunix's sampler, its cache as long as ours is."""

    def __init__(self, name: str, dtype: str, context: int):
        from tunix.generate import sampler
        from tunix.models.llama3 import model, params

        c = networks.NETWORKS[name]
        # Its rotary base is 1e6 whatever its config says.
        model.apply_rope = functools.partial(model.apply_rope, rope_theta=c.rope_theta)
        config = model.ModelConfig(
            num_layers=c.num_layers, vocab_size=c.vocab_size, embed_dim=c.embed_dim, hidden_dim=c.mlp_dim,
            num_heads=c.num_heads, head_dim=c.head_dim, num_kv_heads=c.num_kv_heads, rope_theta=c.rope_theta,
            norm_eps=c.norm_eps, weight_tying=c.tied_head,
        )  # fmt: skip
        with published(name) as path:
            network = params.create_model_from_safe_tensors(str(path), config, dtype=jnp.dtype(dtype))
            jax.block_until_ready(jax.tree.leaves(network))
        size = sampler.CacheConfig(context, c.num_layers, c.num_kv_heads, c.head_dim)
        self._sampler = sampler.Sampler(network, _Numbers(), size)
        self._prefill = self._sampler._compiled_prefill_fn

    def __call__(self, tokens_BxP: np.ndarray, new: int, mark: Callable[[], None]) -> np.ndarray:
        def prefill(*args: Any, **how: Any) -> Any:
            state = jax.block_until_ready(self._prefill(*args, **how))
            mark()
            return state

        self._sampler._compiled_prefill_fn = prefill
        texts = [" ".join(map(str, row)) for row in tokens_BxP]
        out = self._sampler(texts, max_generation_steps=new, max_prompt_length=tokens_BxP.shape[1])
        return np.array([np.asarray(row)[:new] for row in out.tokens])


def write_gguf(path: pathlib.Path, name: str, dtype: str) -> None:
    """A network's weights as llama.cpp reads them; norms stay float32, as they do here. It has no tokenizer."""
    import gguf

    c = networks.NETWORKS[name]
    _, params = networks.network(name)
    kind = {"float32": gguf.GGMLQuantizationType.F32, "bfloat16": gguf.GGMLQuantizationType.BF16}[dtype]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, c.num_layers)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(c.num_layers)
    writer.add_context_length(8192)
    writer.add_embedding_length(c.embed_dim)
    writer.add_feed_forward_length(c.mlp_dim)
    writer.add_head_count(c.num_heads)
    writer.add_head_count_kv(c.num_kv_heads)
    writer.add_key_length(c.head_dim)
    writer.add_value_length(c.head_dim)
    writer.add_layer_norm_rms_eps(c.norm_eps)
    writer.add_rope_freq_base(c.rope_theta)
    writer.add_rope_dimension_count(c.head_dim)
    writer.add_vocab_size(c.vocab_size)
    writer.add_tokenizer_model("none")
    for theirs, tensor in weights.exported(params, c):
        array = np.ascontiguousarray(tensor, np.float32)
        if theirs.endswith(("q_proj.weight", "k_proj.weight")):  # rotary pairs are neighbours there
            array = array.reshape(-1, 2, c.head_dim // 2, c.embed_dim).swapaxes(1, 2).reshape(array.shape)
        stored = gguf.GGMLQuantizationType.F32 if array.ndim == 1 else kind
        writer.add_tensor(names.get_name(theirs, (".weight",)), gguf.quantize(array, stored), raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp with a batch of sequences, a row of its cache for each, which is float32 as ours is.

    Its own server does the same: what a slot's sequence begins with stays in the cache from turn to turn, a call holds
    the next token of whoever is generating and as much as there is room for of the prompts that wait.
    """

    def __init__(self, name: str, dtype: str, sequences: int, context: int):
        import llama_cpp

        self._lib, self._vocab = llama_cpp, networks.NETWORKS[name].vocab_size
        self._silent = llama_cpp.llama_log_callback(lambda *_: None)  # it tells much
        llama_cpp.llama_log_set(self._silent, None)
        llama_cpp.llama_backend_init()
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max = sequences * context, sequences
        settings.n_batch, settings.n_ubatch = LLAMA_BATCH, 512
        settings.n_threads = settings.n_threads_batch = networks.threads()
        settings.type_k = settings.type_v = llama_cpp.GGML_TYPE_F32
        settings.kv_unified = False  # or every sequence would look through all others' keys
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "weights.gguf"
            write_gguf(path, name, dtype)
            how = llama_cpp.llama_model_default_params()
            how.use_mmap = False
            self._model = llama_cpp.llama_model_load_from_file(os.fsencode(path), how)
            if not self._model:
                raise SystemExit("llama.cpp could not load the weights that were written for it")
        self._context = llama_cpp.llama_init_from_model(self._model, settings)
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(LLAMA_BATCH, 0, 1)
        self._lengths = np.zeros(sequences, np.int64)

    def clear(self, sequence: int) -> None:
        """Forgets a sequence."""
        self._lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        self._lengths[sequence] = 0

    def feed(self, parts: Sequence[tuple[int, np.ndarray]]) -> list[int]:
        """Appends tokens to sequences in one call.

        Args:
          parts: (sequence, tokens); LLAMA_BATCH tokens in all at most.

        Returns:
          The most probable next token of each part, in order.
        """
        batch, n, lasts = self._batch, 0, []
        for sequence, tokens in parts:
            for i, token in enumerate(tokens.tolist()):
                batch.token[n], batch.pos[n] = token, int(self._lengths[sequence]) + i
                batch.n_seq_id[n], batch.seq_id[n][0], batch.logits[n] = 1, sequence, 0
                n += 1
            self._lengths[sequence] += len(tokens)
            batch.logits[n - 1] = 1
            lasts.append(n - 1)
        batch.n_tokens = n
        if self._lib.llama_decode(self._context, batch):
            raise SystemExit("llama.cpp found no room in its cache")
        row = ctypes.POINTER(ctypes.c_float * self._vocab)
        logits = (ctypes.cast(self._lib.llama_get_logits_ith(self._context, i), row).contents for i in lasts)
        return [int(np.frombuffer(one, np.float32).argmax()) for one in logits]

    def __call__(self, tokens_BxP: np.ndarray, new: int, mark: Callable[[], None]) -> np.ndarray:
        out = np.zeros((len(tokens_BxP), new), np.int32)
        for b in range(len(tokens_BxP)):
            self.clear(b)
        rows = max(1, LLAMA_BATCH // tokens_BxP.shape[1])
        for first in range(0, len(tokens_BxP), rows):
            some = range(first, min(first + rows, len(tokens_BxP)))
            out[some.start : some.stop, 0] = self.feed([(b, tokens_BxP[b]) for b in some])
        mark()
        for i in range(1, new):
            out[:, i] = self.feed([(b, out[b, i - 1 : i]) for b in range(len(out))])
        return out
