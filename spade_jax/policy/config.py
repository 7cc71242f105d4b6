"""The shape of the network: everything needed to rebuild it from its weights."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """Hyper-parameters of `Decoder`; saved beside the weights.

    Attributes:
      vocab_size: V, rows of the embedding.
      embed_dim: D, width of the residual stream.
      num_layers: L.
      num_heads: H, query heads.
      num_kv_heads: K, key/value heads; divides H.
      head_dim: width of one head, even (RoPE rotates its two halves).
      mlp_dim: hidden width of the gated MLP.
      rope_theta: base of the rotary frequencies.
      norm_eps: added to the mean square in RMSNorm.
      qk_norm: RMSNorm on every query and key head before RoPE.
      tied_head: logits are products with the embedding, there is no head weight.
      remat: recompute each layer in the backward pass instead of storing it.
      dtype: precision of the operands of products; sums are float32.
      param_dtype: precision in which the weights are created.
    """

    vocab_size: int
    embed_dim: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_dim: int
    rope_theta: float = 10000.0
    norm_eps: float = 1e-6
    qk_norm: bool = False
    tied_head: bool = True
    remat: bool = False
    dtype: str = "float32"
    param_dtype: str = "float32"

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.type == "int" and value < 1:
                raise ValueError(f"policy.{field.name}={value} must be at least 1.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"policy.num_kv_heads={self.num_kv_heads} does not divide num_heads={self.num_heads}; use a divisor."
            )
        if self.head_dim % 2:
            raise ValueError(f"policy.head_dim={self.head_dim} is odd; RoPE rotates two halves, use an even width.")
