"""GGUF files: their metadata as the settings of a `config.json`, their tensors under Hugging Face's names.

Tensors are stored quantised in blocks and dequantised one at a time when they are read. What llama.cpp's converter
changes is changed back: the rows of the llama architecture's query and key projections, which it permutes for rotary
positions that interleave, and the norm scales of the Gemma architectures, to which it adds 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from spade_jax.policy.config import RopeScaling
from spade_jax.policy.rope import frequencies

# GGUF architecture -> model type of a config.json.
_KINDS = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3moe": "qwen3_moe",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
}
QUANTISATIONS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")

_WHOLE = {"token_embd.weight": "model.embed_tokens.weight", "output.weight": "lm_head.weight",
          "output_norm.weight": "model.norm.weight"}  # fmt: skip
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
_OF_GEMMA_LAYER = _OF_LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OF_EXPERTS = {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}
_ROPE_FREQUENCIES = "rope_freqs.weight"
# Layers of the models whose scores are scaled by (width / heads) ** -0.5, which no metadata says.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}


def _shape(tensor: Any, expert: int | None) -> tuple[int, ...]:
    shape = tuple(int(n) for n in reversed(tensor.shape))  # GGUF lists the innermost first
    return shape if expert is None else shape[1:]


class GGUFFile:
    """A GGUF file's settings and tensors.

    Raises:
      ValueError: the `gguf` package is not there, or the file is none, of an unknown architecture, or quantised in
        an unknown way.
    """

    def __init__(self, path: Path):
        try:
            import gguf  # an extra: nobody else needs it
        except ImportError as error:
            raise ValueError(f"reading {path} needs the gguf package; install spade_jax[hf]") from error
        self.path, self._dequantize = path, gguf.dequantize
        try:
            reader = gguf.GGUFReader(path)
        except (ValueError, KeyError, IndexError, OSError) as error:  # what a damaged file makes it raise
            raise ValueError(f"{path} is no GGUF file, or not a whole one ({error})") from error
        self._fields = reader.fields
        self.architecture = str(self.field("general.architecture"))
        if self.architecture not in _KINDS:
            raise ValueError(f"{path}: architecture {self.architecture!r} is not known; known are {', '.join(_KINDS)}")
        self._gemma = self.architecture.startswith("gemma")
        self._tensors: dict[str, tuple[Any, int | None]] = {}  # (tensor, expert) by Hugging Face name
        self._frequencies = None
        for tensor in reader.tensors:
            if tensor.tensor_type.name not in QUANTISATIONS:
                raise ValueError(
                    f"{path}: {tensor.name} is quantised as {tensor.tensor_type.name}, which is none of "
                    f"{', '.join(QUANTISATIONS)}"
                )
            if tensor.name == _ROPE_FREQUENCIES:
                self._frequencies = np.array(tensor.data)
                continue
            self._tensors |= self._names(tensor)

    def field(self, name: str, default: Any = None) -> Any:
        """A metadata value, `default` where there is none."""
        return self._fields[name].contents() if name in self._fields else default

    def _names(self, tensor: Any) -> dict[str, tuple[Any, int | None]]:
        if tensor.name in _WHOLE:
            return {_WHOLE[tensor.name]: (tensor, None)}
        block, _, rest = tensor.name.partition(".")
        layer, _, rest = rest.partition(".")
        part, _, kind = rest.rpartition(".")
        prefix = f"model.layers.{layer}"
        if part in _OF_EXPERTS:
            experts = range(int(tensor.shape[-1]))
            return {f"{prefix}.mlp.experts.{e}.{_OF_EXPERTS[part]}.{kind}": (tensor, e) for e in experts}
        names = _OF_GEMMA_LAYER if self._gemma else _OF_LAYER
        if block == "blk" and part in names:
            return {f"{prefix}.{names[part]}.{kind}": (tensor, None)}
        return {tensor.name: (tensor, None)}  # unknown: the importer lists it as left over

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: _shape(*entry) for name, entry in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """The tensor in float32, dequantised."""
        tensor, expert = self._tensors[name]
        data = tensor.data if expert is None else tensor.data[expert]
        array = self._dequantize(data, tensor.tensor_type).astype(np.float32, copy=False)
        array = array.reshape(_shape(tensor, expert))
        if self.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
            heads = self._of_architecture("attention.head_count")
            if ".k_proj." in name:
                heads = self._of_architecture("attention.head_count_kv", heads)
            apart = array.reshape(heads, -1, 2, *array.shape[1:])
            array = apart.swapaxes(1, 2).reshape(array.shape)
        if self._gemma and name.endswith("norm.weight"):
            array = array - 1
        return array

    def _of_architecture(self, name: str, default: Any = None) -> Any:
        return self.field(f"{self.architecture}.{name}", default)

    def settings(self) -> dict[str, Any]:
        """The metadata as the settings of a config.json.

        Raises:
          ValueError: the file lacks a number without which there is no network.
        """
        get = self._of_architecture
        wanted = dict(
            num_hidden_layers="block_count",
            hidden_size="embedding_length",
            intermediate_size="feed_forward_length",
            num_attention_heads="attention.head_count",
            rms_norm_eps="attention.layer_norm_rms_epsilon",
        )
        settings = {name: get(key) for name, key in wanted.items()}
        lost = [wanted[name] for name, value in settings.items() if value is None]
        if lost or "model.embed_tokens.weight" not in self._tensors:
            raise ValueError(f"{self.path} lacks {', '.join(lost) or 'token_embd.weight'}")
        heads = settings["num_attention_heads"]
        theta = float(get("rope.freq_base", 10000.0))
        settings |= dict(
            model_type=_KINDS[self.architecture],
            vocab_size=self.shapes()["model.embed_tokens.weight"][0],
            num_key_value_heads=get("attention.head_count_kv", heads),
            head_dim=get("attention.key_length", settings["hidden_size"] // heads),
            max_position_embeddings=get("context_length"),
            rms_norm_eps=float(str(np.float32(settings["rms_norm_eps"]))),  # stored as the nearest float32
            rope_theta=theta,
            tie_word_embeddings="lm_head.weight" not in self._tensors,
        )
        if (scaling := self._scaling(settings["head_dim"], theta)) is not None:
            settings["rope_scaling"] = scaling
        if self._gemma:
            settings |= dict(
                sliding_window=get("attention.sliding_window"),
                attn_logit_softcapping=get("attn_logit_softcapping"),
                final_logit_softcapping=get("final_logit_softcapping"),
                query_pre_attn_scalar=settings["head_dim"],
            )
            if settings["num_hidden_layers"] == _SCALED_BY_WIDTH[self.architecture]:
                settings["query_pre_attn_scalar"] = settings["hidden_size"] / heads
        if self.architecture == "qwen3moe":
            settings |= dict(
                num_experts=get("expert_count"),
                num_experts_per_tok=get("expert_used_count"),
                moe_intermediate_size=get("expert_feed_forward_length"),
                norm_topk_prob=True,
            )
        settings["attention_bias"] = "model.layers.0.self_attn.o_proj.bias" in self._tensors
        settings["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in self._tensors
        return settings

    def _scaling(self, head_dim: int, theta: float) -> dict[str, Any] | None:
        get = self._of_architecture
        kind = get("rope.scaling.type", "none")
        if kind in ("linear", "yarn"):
            return dict(
                rope_type=kind,
                factor=get("rope.scaling.factor"),
                original_max_position_embeddings=get("rope.scaling.original_context_length"),
            )
        if self._frequencies is None:
            return None
        # Llama 3's factors are stored as what divides each frequency; 3.1 stretches by 8, 3.2 by 32.
        for factor in (8.0, 32.0):
            scaling = RopeScaling("llama3", factor, 8192, 1.0, 4.0)
            divisors = frequencies(head_dim, theta, None)[0] / frequencies(head_dim, theta, scaling)[0]
            if np.allclose(divisors, self._frequencies, rtol=1e-3):
                return dict(
                    rope_type="llama3",
                    factor=factor,
                    original_max_position_embeddings=8192,
                    low_freq_factor=1.0,
                    high_freq_factor=4.0,
                )
        raise ValueError(f"{self.path}: {_ROPE_FREQUENCIES} holds neither Llama 3.1's nor 3.2's rotary factors")
