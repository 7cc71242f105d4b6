"""The shape of the network: everything needed to rebuild it from its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

ACTIVATIONS = ("silu", "gelu_tanh")
ATTENTIONS = ("xla", "cudnn", "splash")
ROPE_SCALINGS = ("linear", "llama3", "yarn")
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are stretched to contexts longer than those of pre-training.

    Attributes:
      kind: "linear" (Chen et al. 2023, arXiv:2306.15595), "llama3" (Llama 3.1's piecewise rule) or "yarn"
        (Peng et al. 2023, arXiv:2309.00071).
      factor: how many times longer.
      original_context: C, tokens of the context before; llama3 and yarn.
      low_frequency_factor, high_frequency_factor: llama3. Frequencies that turn fewer than `low` times in C are divided
        by the factor, those that turn more than `high` times are kept, those between are interpolated.
      beta_fast, beta_slow: yarn. Turns in C above which frequencies are kept, and below which they are divided.
      attention_factor: yarn. Multiplies the cosines and sines; 0 takes 0.1 ln(factor) + 1.
      truncate: yarn. The interpolated dimensions begin and end at whole numbers.
    """

    kind: str
    factor: float
    original_context: int = 0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 0.0
    truncate: bool = True

    def __post_init__(self):
        if self.kind not in ROPE_SCALINGS:
            raise ValueError(f"rope_scaling.kind={self.kind!r} is unknown; use one of {', '.join(ROPE_SCALINGS)}.")
        if not self.factor >= 1:
            raise ValueError(f"rope_scaling.factor={self.factor} shortens the context; use at least 1.")
        if self.kind != "linear" and self.original_context < 1:
            raise ValueError(
                f"rope_scaling.original_context={self.original_context} is no context; give the tokens that "
                f"{self.kind} scaling starts from."
            )


@dataclasses.dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, trained in place of the weights (Hu et al. 2021, arXiv:2106.09685).

    Attributes:
      rank: r, of what an adapter adds to a weight.
      alpha: what it adds is multiplied by alpha / r.
      targets: names of the weights that have one; "gate", "up" and "down" are the experts' where there are experts.
    """

    rank: int
    alpha: float
    targets: tuple[str, ...]

    def __post_init__(self):
        object.__setattr__(self, "targets", tuple(self.targets))
        if self.rank < 1:
            raise ValueError(f"lora.rank={self.rank} is none; use at least 1.")
        if not self.alpha > 0:
            raise ValueError(f"lora.alpha={self.alpha} would add nothing; use a positive number.")
        if not self.targets or not set(self.targets) <= set(LORA_TARGETS):
            raise ValueError(f"lora.targets={self.targets} must be some of {', '.join(LORA_TARGETS)}.")

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Hyper-parameters of `Decoder`; saved beside the weights. The defaults are the plain decoder.

    Attributes:
      vocab_size: V, rows of the embedding.
      embed_dim: D, width of the residual stream.
      num_layers: L.
      num_heads: H, query heads.
      num_kv_heads: K, key/value heads; divides H.
      head_dim: width of one head, even (RoPE rotates its two halves).
      mlp_dim: hidden width of the gated MLP; of one expert where there are experts.
      rope_theta: base of the rotary frequencies.
      rope_scaling: how they are stretched; None leaves them.
      norm_eps: added to the mean square in RMSNorm.
      norm_plus_one: RMSNorm multiplies by 1 + scale (Gemma).
      sandwich_norm: RMSNorm on what attention and MLP add to the residual stream, too (Gemma 2 and 3).
      qk_norm: RMSNorm on every query and key head before RoPE.
      qkv_bias: biases on queries, keys and values.
      output_bias: a bias on the attention's output.
      mlp_bias: biases in the MLP.
      query_scale: multiplies the scores; 0 takes head_dim ** -0.5.
      attention_softcap: c in c tanh(score / c); 0 caps nothing.
      sliding_window: W, tokens that a local layer attends to, itself included; 0 where no layer is local.
      local_layers: for each layer whether it is local; () makes every layer local where there is a window.
      local_rope_theta: base of the rotary frequencies of local layers, unscaled; 0 takes those of the others.
      activation: of the gate, "silu" or "gelu_tanh".
      embedding_scale: multiplies the embedded tokens.
      logit_softcap: c in c tanh(logit / c); 0 caps nothing.
      num_experts: E, experts in every layer's MLP; 0 is a dense MLP.
      experts_per_token: the most probable experts of a token, whose outputs are mixed.
      normalised_router: the weights of those experts add up to 1.
      lora: the adapters; None has none.
      attention: "xla" (products and a softmax), or, without a cache, one kernel: "cudnn" on NVIDIA GPUs, "splash" on
        TPUs, where decoding over a cache has one, too (`policy.blocked`).
      tied_head: logits are products with the embedding, there is no head weight.
      remat: recompute each layer in the backward pass instead of storing it.
      dtype: precision of the operands of products; sums are float32.
      param_dtype: precision in which the weights are created; norm scales and adapters are float32.
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    norm_plus_one: bool = False
    sandwich_norm: bool = False
    qk_norm: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    query_scale: float = 0.0
    attention_softcap: float = 0.0
    sliding_window: int = 0
    local_layers: tuple[bool, ...] = ()
    local_rope_theta: float = 0.0
    activation: str = "silu"
    embedding_scale: float = 1.0
    logit_softcap: float = 0.0
    num_experts: int = 0
    experts_per_token: int = 0
    normalised_router: bool = True
    lora: LoraConfig | None = None
    attention: str = "xla"
    tied_head: bool = True
    remat: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self):
        # Plain JSON values, as a config or a file of weights holds them, are as good.
        if isinstance(self.rope_scaling, Mapping):
            object.__setattr__(self, "rope_scaling", RopeScaling(**self.rope_scaling))
        if isinstance(self.lora, Mapping):
            object.__setattr__(self, "lora", LoraConfig(**self.lora))
        object.__setattr__(self, "local_layers", tuple(bool(local) for local in self.local_layers))
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = 1 if field.default is dataclasses.MISSING else 0
            if field.type in ("int", "float") and not value >= least:
                raise ValueError(f"policy.{field.name}={value} must be at least {least}.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"policy.num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; use a divisor."
            )
        if self.head_dim % 2:
            raise ValueError(f"policy.head_dim={self.head_dim} is odd; RoPE rotates two halves, use an even width.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"policy.activation={self.activation!r} is unknown; use one of {', '.join(ACTIVATIONS)}.")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"policy.attention={self.attention!r} is unknown; use one of {', '.join(ATTENTIONS)}.")
        if self.attention == "cudnn" and (self.attention_softcap or self.dtype == "float32"):
            raise ValueError(
                f"policy.attention=cudnn has no soft cap and no float32, but policy.attention_softcap="
                f"{self.attention_softcap} and policy.dtype={self.dtype}; use xla."
            )
        if self.local_layers and len(self.local_layers) != self.num_layers:
            raise ValueError(
                f"policy.local_layers has {len(self.local_layers)} entries for num_layers={self.num_layers}; give one "
                "for each layer, or ()."
            )
        if any(self.local_layers) and not self.sliding_window:
            raise ValueError("policy.local_layers names local layers, but policy.sliding_window is 0; give a width.")
        if self.num_experts and not 1 <= self.experts_per_token <= self.num_experts:
            raise ValueError(
                f"policy.experts_per_token={self.experts_per_token} is not within 1..num_experts={self.num_experts}."
            )
        if self.num_experts and self.mlp_bias:
            raise ValueError("policy.mlp_bias with policy.num_experts is not supported; experts have no biases.")

    @property
    def merged(self) -> DecoderConfig:
        """The same network without adapters, for weights that hold what these added."""
        return dataclasses.replace(self, lora=None)

    @property
    def mixed_layers(self) -> bool:
        """Some layers are local and some are not."""
        return any(self.local_layers) and not all(self.local_layers)

    def is_local(self, layer: int) -> bool:
        """Whether a layer attends to its window only."""
        return self.sliding_window > 0 and (self.local_layers[layer] if self.local_layers else True)
