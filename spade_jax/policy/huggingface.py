"""Hugging Face's `config.json` to `DecoderConfig`, and back.

Settings that a file leaves out have the value that its model type gives them there. A setting that this decoder
cannot follow is an error; those that concern training or generation only (dropout, cache, ...) are passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from spade_jax.policy.config import DecoderConfig, RopeScaling

Settings = Mapping[str, Any]

_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_GEMMA = dict(
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=256,
    query_pre_attn_scalar=256,
    sliding_window=4096,
    tie_word_embeddings=True,
    hidden_activation="gelu_pytorch_tanh",
)
# What a model type's settings are where its file does not say; the rest is in `_COMMON`.
_COMMON = dict(rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False, hidden_act="silu")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": dict(num_key_value_heads=8, sliding_window=4096),
    "qwen2": dict(num_key_value_heads=32),
    "qwen3": dict(num_key_value_heads=32, head_dim=128),
    "qwen3_moe": dict(num_key_value_heads=4, num_experts=128, num_experts_per_tok=8, norm_topk_prob=False),
    "gemma2": _GEMMA | dict(vocab_size=256_000, final_logit_softcapping=30.0, attn_logit_softcapping=50.0),
    "gemma3_text": _GEMMA | dict(vocab_size=262_208, rope_theta=1e6, rope_local_base_freq=10000.0),
}
MODEL_TYPES = (*_DEFAULTS, "gemma3")

# Tensors of a checkpoint that are none of the decoder's: buffers that are computed, and the vision half of Gemma 3.
IGNORED_SUFFIXES = (".rotary_emb.inv_freq",)
IGNORED_PREFIXES = {"gemma3": ("vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                               "model.multi_modal_projector.")}  # fmt: skip
# How the decoder's tensors are called there, longest first.
TEXT_PREFIXES = {"gemma3": (("language_model.model.", "model."), ("model.language_model.", "model."),
                            ("language_model.lm_head.", "lm_head."))}  # fmt: skip


def from_huggingface(settings: Settings) -> DecoderConfig:
    """The decoder of a `config.json`.

    Raises:
      ValueError: an unknown model_type, or a setting that is missing or that the decoder cannot follow.
    """
    kind = settings.get("model_type")
    if kind == "gemma3":
        settings, kind = {**settings.get("text_config", {}), "model_type": "gemma3_text"}, "gemma3_text"
    if kind not in _DEFAULTS:
        raise ValueError(f"model_type {kind!r} is not known; known are {', '.join(MODEL_TYPES)}")
    # A null stands for the default, but for the window, whose null means none.
    given = {key: value for key, value in settings.items() if value is not None or key == "sliding_window"}
    h = _COMMON | _DEFAULTS[kind] | given
    try:
        return _decoder(kind, h)
    except KeyError as error:
        raise ValueError(f"config.json of model_type {kind} lacks {error.args[0]!r}") from error


def _decoder(kind: str, h: dict[str, Any]) -> DecoderConfig:
    gemma = kind.startswith("gemma")
    activation = h["hidden_activation"] if gemma else h["hidden_act"]
    if activation not in _ACTIVATIONS:
        raise ValueError(f"hidden_act {activation!r} is not known; known are {', '.join(_ACTIVATIONS)}")
    if h.get("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError(f"partial_rotary_factor={h['partial_rotary_factor']} is not supported; only 1 is")
    if h.get("use_bidirectional_attention"):
        raise ValueError("use_bidirectional_attention is not supported; the decoder is causal")
    theta, scaling, local_theta = _rope(kind, h)
    attention_bias = bool(h.get("attention_bias", False))
    width, layers, heads = h["hidden_size"], h["num_hidden_layers"], h["num_attention_heads"]
    window, local = _windows(kind, h)
    moe: dict[str, Any] = {}
    if kind == "qwen3_moe":
        if h.get("decoder_sparse_step", 1) != 1 or h.get("mlp_only_layers"):
            raise ValueError("decoder_sparse_step and mlp_only_layers are not supported; every layer must have experts")
        moe = dict(
            num_experts=h.get("num_local_experts", h["num_experts"]),
            experts_per_token=h["num_experts_per_tok"],
            normalised_router=bool(h["norm_topk_prob"]),
        )
    return DecoderConfig(
        vocab_size=h["vocab_size"],
        embed_dim=width,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=h.get("num_key_value_heads", heads),
        head_dim=h.get("head_dim", width // heads),
        mlp_dim=h["moe_intermediate_size"] if moe else h["intermediate_size"],
        rope_theta=theta,
        rope_scaling=scaling,
        norm_eps=h["rms_norm_eps"],
        norm_plus_one=gemma,
        sandwich_norm=gemma,
        qk_norm=kind in ("qwen3", "qwen3_moe", "gemma3_text"),
        qkv_bias=kind == "qwen2" or attention_bias,
        output_bias=kind != "qwen2" and attention_bias,
        mlp_bias=bool(h.get("mlp_bias", False)),
        query_scale=h["query_pre_attn_scalar"] ** -0.5 if gemma else 0.0,
        attention_softcap=h.get("attn_logit_softcapping") or 0.0,
        sliding_window=window,
        local_layers=local,
        local_rope_theta=local_theta,
        activation=_ACTIVATIONS[activation],
        embedding_scale=width**0.5 if gemma else 1.0,
        logit_softcap=h.get("final_logit_softcapping") or 0.0,
        tied_head=bool(h["tie_word_embeddings"]),
        **moe,
    )


def _windows(kind: str, h: dict[str, Any]) -> tuple[int, tuple[bool, ...]]:
    """The width of local layers, and which layers they are; (0, ()) where none is."""
    layers, window = h["num_hidden_layers"], h.get("sliding_window")
    if kind == "llama" or not window:
        return 0, ()
    if kind == "mistral":
        return window, ()
    if kind.startswith("qwen") and not h.get("use_sliding_window"):
        return 0, ()
    if types := h.get("layer_types"):
        unknown = set(types) - {"sliding_attention", "full_attention"}
        if unknown or len(types) != layers:
            raise ValueError(f"layer_types must name sliding_attention or full_attention for each of {layers} layers")
        local = tuple(kind == "sliding_attention" for kind in types)
    elif kind.startswith("qwen"):
        local = tuple(i >= h.get("max_window_layers", 28) for i in range(layers))
    else:
        every = 2 if kind == "gemma2" else h.get("sliding_window_pattern", h.get("_sliding_window_pattern", 6))
        local = tuple((i + 1) % every != 0 for i in range(layers))
    if all(local):
        return window, ()
    return (window, local) if any(local) else (0, ())


def _rope(kind: str, h: dict[str, Any]) -> tuple[float, RopeScaling | None, float]:
    """(theta, scaling, theta of local layers or 0), as older files or newer ones (`rope_parameters`) write them."""
    parameters = h.get("rope_parameters", {})
    local = parameters.get("sliding_attention", {})
    if "full_attention" in parameters:
        parameters = parameters["full_attention"]
    theta = float(parameters.get("rope_theta", h["rope_theta"]))
    scaling = _scaling(h.get("rope_scaling") or parameters, h)
    if kind != "gemma3_text":
        return theta, scaling, 0.0
    return theta, scaling, float(local.get("rope_theta", h["rope_local_base_freq"]))


def _scaling(rope: Settings, h: Settings) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(rope["factor"]))
    context = rope.get("original_max_position_embeddings") or h.get("max_position_embeddings", 0)
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            float(rope["factor"]),
            context,
            low_frequency_factor=float(rope["low_freq_factor"]),
            high_frequency_factor=float(rope["high_freq_factor"]),
        )
    if kind == "yarn":
        if rope.get("mscale") or rope.get("mscale_all_dim"):
            raise ValueError("rope_scaling with mscale is not supported; only attention_factor is")
        return RopeScaling(
            "yarn",
            float(rope["factor"]),
            context,
            beta_fast=float(rope.get("beta_fast") or 32.0),
            beta_slow=float(rope.get("beta_slow") or 1.0),
            attention_factor=float(rope.get("attention_factor") or 0.0),
            truncate=bool(rope.get("truncate", True)),
        )
    raise ValueError(f"rope_scaling type {kind!r} is not known; known are default, linear, llama3, yarn")


def to_huggingface(config: DecoderConfig, *, context: int, dtype: str) -> dict[str, Any]:
    """A `config.json` whose decoder is `config`.

    Args:
      config: the shape.
      context: max_position_embeddings.
      dtype: in which the weights are stored.

    Raises:
      ValueError: no known model type has these settings together.
    """
    kind = _model_type(config)
    gemma, c = kind.startswith("gemma"), config
    settings: dict[str, Any] = dict(
        model_type=kind,
        architectures=[_ARCHITECTURES[kind]],
        vocab_size=c.vocab_size,
        hidden_size=c.embed_dim,
        intermediate_size=c.mlp_dim,
        num_hidden_layers=c.num_layers,
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        max_position_embeddings=context,
        rms_norm_eps=c.norm_eps,
        rope_theta=c.rope_theta,
        tie_word_embeddings=c.tied_head,
        torch_dtype=dtype,
    )
    activation = next(theirs for theirs, ours in _ACTIVATIONS.items() if ours == c.activation)
    settings["hidden_activation" if gemma else "hidden_act"] = activation
    if c.rope_scaling is not None:
        settings["rope_scaling"] = _scaling_settings(c.rope_scaling)
    if kind != "qwen2":
        settings["attention_bias"] = c.qkv_bias
    if kind == "llama":
        settings["mlp_bias"] = c.mlp_bias
    if kind in ("mistral", "gemma2", "gemma3_text") or c.sliding_window:
        settings["sliding_window"] = c.sliding_window or None
    if kind.startswith("qwen"):
        settings["use_sliding_window"] = c.sliding_window > 0
    if c.local_layers or (c.sliding_window and kind != "mistral"):
        names = {True: "sliding_attention", False: "full_attention"}
        settings["layer_types"] = [names[c.is_local(i)] for i in range(c.num_layers)]
    if gemma:
        scalar = c.query_scale**-2
        settings["query_pre_attn_scalar"] = round(scalar) if abs(scalar - round(scalar)) < 1e-9 else scalar
        settings["attn_logit_softcapping"] = c.attention_softcap or None
        settings["final_logit_softcapping"] = c.logit_softcap or None
    if kind == "gemma3_text":
        settings["rope_local_base_freq"] = c.local_rope_theta
    if c.num_experts:
        settings |= dict(
            num_experts=c.num_experts,
            num_experts_per_tok=c.experts_per_token,
            moe_intermediate_size=c.mlp_dim,
            norm_topk_prob=c.normalised_router,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        )
    told = from_huggingface(settings)
    wrong = [name for name in _SHAPE if getattr(told, name) != getattr(config, name)]
    if wrong:
        raise ValueError(
            f"no known model type has this policy's {', '.join(f'{n}={getattr(config, n)!r}' for n in wrong)}: "
            f"{kind} has {', '.join(repr(getattr(told, n)) for n in wrong)}; only the architectures of "
            f"{', '.join(MODEL_TYPES)} can be exported"
        )
    return settings


_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
}
_EXECUTION = ("attention", "remat", "dtype", "param_dtype")  # how it is computed, which no checkpoint says
_SHAPE = tuple(name for name in DecoderConfig.__dataclass_fields__ if name not in _EXECUTION)


def _model_type(c: DecoderConfig) -> str:
    """The model type that comes nearest; `to_huggingface` then checks that it is it."""
    rules: tuple[tuple[str, Callable[[], bool]], ...] = (
        ("gemma3_text", lambda: c.norm_plus_one and c.qk_norm),
        ("gemma2", lambda: c.norm_plus_one),
        ("qwen3_moe", lambda: c.num_experts > 0),
        ("qwen3", lambda: c.qk_norm),
        ("qwen2", lambda: c.qkv_bias and not c.output_bias),
        ("mistral", lambda: c.sliding_window > 0 and not c.local_layers),
    )
    return next((kind for kind, holds in rules if holds()), "llama")


def _scaling_settings(scaling: RopeScaling) -> dict[str, Any]:
    settings: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "linear":
        return settings
    settings["original_max_position_embeddings"] = scaling.original_context
    if scaling.kind == "llama3":
        return settings | dict(
            low_freq_factor=scaling.low_frequency_factor, high_freq_factor=scaling.high_frequency_factor
        )
    settings |= dict(beta_fast=scaling.beta_fast, beta_slow=scaling.beta_slow, truncate=scaling.truncate)
    return settings | ({"attention_factor": scaling.attention_factor} if scaling.attention_factor else {})
