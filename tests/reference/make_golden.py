"""Regenerates tests/data/golden: logits and gradients of tiny random models by transformers on torch.

    pip install -e '.[reference]' && python -m tests.reference.make_golden

Every file is one architecture with all its features on. Weights are drawn by name (tests/policy/golden.py), so that a
file holds the config, the tensors' names and shapes, the tokens and what transformers makes of them.
"""

from __future__ import annotations

import copy
import json
import pathlib
import tempfile
from typing import Any

import numpy as np
import torch
import transformers

from spade_jax.policy.safetensors import SafetensorsFolder
from tests.policy import golden

_SMALL = dict(
    vocab_size=48,
    hidden_size=32,
    intermediate_size=40,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    tie_word_embeddings=False,
    pad_token_id=None,  # torch gives the row of a padding token no gradient
)
_LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
CASES: dict[str, dict[str, Any]] = {
    "llama3": dict(
        model_type="llama",
        attention_bias=True,
        mlp_bias=True,
        rope_theta=100.0,
        rope_scaling=_LLAMA3 | dict(original_max_position_embeddings=16),
    ),
    "smollm2": dict(model_type="llama", tie_word_embeddings=True, rope_theta=100000.0),
    "llama_linear": dict(model_type="llama", rope_scaling=dict(rope_type="linear", factor=4.0)),
    "mistral": dict(model_type="mistral", sliding_window=5, head_dim=12),
    "qwen2": dict(model_type="qwen2", use_sliding_window=True, sliding_window=6, max_window_layers=1),
    "qwen3_yarn": dict(
        model_type="qwen3",
        head_dim=16,
        attention_bias=True,
        rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16),
    ),
    "qwen3_moe": dict(
        model_type="qwen3_moe",
        moe_intermediate_size=24,
        num_experts=8,
        num_experts_per_tok=3,
        norm_topk_prob=True,
        decoder_sparse_step=1,
        mlp_only_layers=[],
    ),
    "gemma2": dict(
        model_type="gemma2",
        query_pre_attn_scalar=12,
        sliding_window=5,
        attn_logit_softcapping=2.0,
        final_logit_softcapping=20.0,
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
    ),
    "gemma3": dict(
        model_type="gemma3_text",
        query_pre_attn_scalar=12,
        sliding_window=5,
        num_hidden_layers=4,
        layer_types=["sliding_attention", "full_attention"] * 2,
        rope_theta=10000.0,
        rope_local_base_freq=100.0,
        rope_scaling=dict(rope_type="linear", factor=8.0),
        tie_word_embeddings=True,
        hidden_activation="gelu_pytorch_tanh",
    ),
}
WITH_GRADIENTS = ("llama3", "qwen3_moe", "gemma3")


def settings_of(case: str) -> dict[str, Any]:
    """The config.json of a case; a copy, because transformers writes into what it is given."""
    return copy.deepcopy(_SMALL | CASES[case])


def published_shapes(settings: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors that transformers saves for a config, which are those of published models."""
    config = transformers.AutoConfig.for_model(**copy.deepcopy(settings))
    model = transformers.AutoModelForCausalLM.from_config(config)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return SafetensorsFolder(pathlib.Path(folder)).shapes()


def run(case: str, settings: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> tuple[np.ndarray, dict[str, Any]]:
    """(float32[T, V] logits, gradients of the mean next-token loss as `golden.projection` by published name)."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        golden.write_model(folder, settings, shapes)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        tokens = torch.tensor(golden.tokens_of(case, settings["vocab_size"]), dtype=torch.long)
        logits = model(tokens).logits
        torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:]).backward()
        gradients = {}
        if case in WITH_GRADIENTS:
            # Saved as if they were weights, they come under the published names.
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_(parameter.grad)
            model.save_pretrained(folder / "gradients")
            stored = SafetensorsFolder(folder / "gradients")
            gradients = {n: golden.projection(n, np.asarray(stored.read(n))) for n in stored.shapes()}
    return logits[0].detach().numpy(), gradients


def main() -> None:
    golden.FOLDER.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        settings = settings_of(case)
        shapes = published_shapes(settings)
        logits, gradients = run(case, settings, shapes)
        texts = {name: np.array(json.dumps(value)) for name, value in
                 (("settings", settings), ("shapes", shapes), ("gradients", gradients))}  # fmt: skip
        tokens = golden.tokens_of(case, settings["vocab_size"])
        np.savez_compressed(golden.FOLDER / f"{case}.npz", tokens=tokens, logits=logits, **texts)
        print(case, float(np.abs(logits).max()), len(shapes))


if __name__ == "__main__":
    main()
