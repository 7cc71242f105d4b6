"""The policy network: a pre-norm decoder with rotary grouped-query attention and a gated MLP.

One forward pass serves training (no cache) and sampling (with a cache).

Axis legend: B rows, T tokens, D residual width, H query heads, K key/value
heads, G = H/K, N heads of either kind, F MLP width, V vocabulary, L layers.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from flax import linen as nn

from spade_jax.policy.attention import apply_rope, cached_attention, causal_attention, rope_table
from spade_jax.policy.cache import KVCache, write
from spade_jax.policy.config import DecoderConfig


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(spec: str, x: jax.Array, w: jax.Array) -> jax.Array:
    """`einsum(spec, x, w)` summed in float32, whose backward products have the operands' precision too.

    Plain autodiff would multiply a float32 cotangent with bf16 operands, which
    promotes both backward products to float32, at a fraction of the bf16 speed.
    Every index of an operand must occur in the other operand or in the output.
    """
    return jnp.einsum(spec, x, w, preferred_element_type=jnp.float32)


def _product_forward(spec, x, w):
    return product(spec, x, w), (x, w)


def _product_backward(spec, operands, g):
    x, w = operands
    in_x, in_w, out = spec.replace("->", ",").split(",")
    g = g.astype(x.dtype)
    dx = jnp.einsum(f"{out},{in_w}->{in_x}", g, w, preferred_element_type=jnp.float32)
    dw = jnp.einsum(f"{in_x},{out}->{in_w}", x, g, preferred_element_type=jnp.float32)
    return dx.astype(x.dtype), dw.astype(w.dtype)


product.defvjp(_product_forward, _product_backward)


def _param(module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str, ...], std: float) -> jax.Array:
    """A weight with logical axis names, in the precision of the products."""
    config = module.config
    init = nn.with_logical_partitioning(nn.initializers.normal(std), axes)
    return module.param(name, init, shape, config.param_dtype).astype(config.dtype)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in float32 (Zhang & Sennrich 2019)."""

    eps: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        init = nn.with_logical_partitioning(nn.initializers.ones, ("norm",))
        scale = self.param("scale", init, x.shape[-1:], jnp.float32)
        x = x.astype(jnp.float32)
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps) * scale


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD, positions_BxT, rope, cache: KVCache | None):
        c = self.config
        in_std = c.embed_dim**-0.5
        out_std = (2 * c.num_layers * c.num_heads * c.head_dim) ** -0.5
        wq = _param(self, "q", (c.embed_dim, c.num_heads, c.head_dim), ("embed", "heads", "head_dim"), in_std)
        wk = _param(self, "k", (c.embed_dim, c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), in_std)
        wv = _param(self, "v", (c.embed_dim, c.num_kv_heads, c.head_dim), ("embed", "kv_heads", "head_dim"), in_std)
        wo = _param(self, "o", (c.num_heads, c.head_dim, c.embed_dim), ("heads", "head_dim", "embed"), out_std)

        q = product("btd,dnh->btnh", x_BxTxD, wq)
        k = product("btd,dnh->btnh", x_BxTxD, wk)
        v = product("btd,dnh->btnh", x_BxTxD, wv).astype(c.dtype)
        q = nn.with_logical_constraint(q, ("batch", "length", "heads", None))
        k = nn.with_logical_constraint(k, ("batch", "length", "kv_heads", None))
        if c.qk_norm:
            q = RMSNorm(c.norm_eps, name="q_norm")(q)
            k = RMSNorm(c.norm_eps, name="k_norm")(k)
        q = apply_rope(q, rope).astype(c.dtype)
        k = apply_rope(k, rope).astype(c.dtype)
        q = q.reshape(*q.shape[:2], c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim)
        if cache is None:
            out = causal_attention(q, k, v)
        else:
            cache = write(cache, k, v, positions_BxT)
            out = cached_attention(q, cache, positions_BxT)
        out = out.reshape(*out.shape[:2], c.num_heads, c.head_dim).astype(c.dtype)
        return product("btnh,nhd->btd", out, wo), cache


class MLP(nn.Module):
    """Gated MLP: (silu(x W_gate) * x W_up) W_down (SwiGLU, Shazeer 2020, arXiv:2002.05202)."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD):
        c = self.config
        gate = _param(self, "gate", (c.embed_dim, c.mlp_dim), ("embed", "mlp"), c.embed_dim**-0.5)
        up = _param(self, "up", (c.embed_dim, c.mlp_dim), ("embed", "mlp"), c.embed_dim**-0.5)
        down = _param(self, "down", (c.mlp_dim, c.embed_dim), ("mlp", "embed"), (2 * c.num_layers * c.mlp_dim) ** -0.5)
        hidden = jax.nn.silu(product("btd,df->btf", x_BxTxD, gate)) * product("btd,df->btf", x_BxTxD, up)
        hidden = nn.with_logical_constraint(hidden.astype(c.dtype), ("batch", "length", "mlp"))
        return product("btf,fd->btd", hidden, down)


class Block(nn.Module):
    """One layer: x += attention(norm(x)); x += mlp(norm(x)). The residual stream is float32."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD, cache: KVCache | None, positions_BxT, rope):
        c = self.config
        with jax.named_scope("attention"):
            h = RMSNorm(c.norm_eps, name="attention_norm")(x_BxTxD).astype(c.dtype)
            h, cache = Attention(c, name="attention")(h, positions_BxT, rope, cache)
            x_BxTxD = x_BxTxD + h
        with jax.named_scope("mlp"):
            h = RMSNorm(c.norm_eps, name="mlp_norm")(x_BxTxD).astype(c.dtype)
            x_BxTxD = x_BxTxD + MLP(c, name="mlp")(h)
        return nn.with_logical_constraint(x_BxTxD, ("batch", "length", None)), cache


class Decoder(nn.Module):
    """Decoder-only language model; see `DecoderConfig` for its shape.

    Parameters are stacked over layers (leading axis "layers"), because the layers
    are one scanned block: it compiles once, not L times.

    Attributes:
      config: the network's shape.
      unrolled: run the same blocks one after the other, on parameters from
        `params.unrolled_params` and on a tuple of per-layer caches. A decode loop
        wants this: a scan would copy every layer's weights and cache in every step.
    """

    config: DecoderConfig
    unrolled: bool = False

    def setup(self):
        c = self.config
        self.embedding = _param(self, "embedding", (c.vocab_size, c.embed_dim), ("vocab", "embed"), 0.02)
        if not c.tied_head:
            shape = (c.vocab_size, c.embed_dim)
            self.head_kernel = _param(self, "head_kernel", shape, ("vocab", "embed"), c.embed_dim**-0.5)
        self.final_norm = RMSNorm(c.norm_eps)
        if self.unrolled:
            self.layers = [Block(c) for _ in range(c.num_layers)]
            return
        # prevent_cse guards against undoing the recomputation, which cannot happen across a scan.
        block = nn.remat(Block, prevent_cse=False) if c.remat else Block
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c)

    def __call__(self, tokens_BxT, positions_BxT, cache: KVCache | tuple[KVCache, ...] | None = None):
        """Runs the network up to and including the final norm.

        Args:
          tokens_BxT: int32[B, T] token ids.
          positions_BxT: int32[B, T]. Without a cache, 0..T-1 in every row. With one,
            a token's index in its conversation; positions >= C mark padding, which
            writes nothing and whose output is meaningless.
          cache: keys and values of earlier tokens (row b continues slot b), one per
            layer if unrolled; or None to attend causally within the T tokens only.

        Returns:
          (float32[B, T, D] hidden states for `head`, the cache with the new tokens or None).
        """
        c = self.config
        with jax.named_scope("embed"):
            x_BxTxD = self.embedding[tokens_BxT].astype(jnp.float32)
            x_BxTxD = nn.with_logical_constraint(x_BxTxD, ("batch", "length", None))
            rope = rope_table(positions_BxT, c.head_dim, c.rope_theta)
        with jax.named_scope("layers"):
            if self.unrolled:
                caches = cache if cache is not None else (None,) * c.num_layers
                done = []
                for layer, layer_cache in zip(self.layers, caches, strict=True):
                    x_BxTxD, layer_cache = layer(x_BxTxD, layer_cache, positions_BxT, rope)
                    done.append(layer_cache)
                cache = None if cache is None else tuple(done)
            else:
                x_BxTxD, cache = self.layers(x_BxTxD, cache, positions_BxT, rope)
        with jax.named_scope("final_norm"):
            return self.final_norm(x_BxTxD), cache

    def head(self, hidden: jax.Array) -> jax.Array:
        """float32[..., D] hidden states to float32[..., V] logits."""
        weight_VxD = self.embedding if self.config.tied_head else self.head_kernel
        with jax.named_scope("head"):
            lead = "xyzw"[: hidden.ndim - 1]
            # An einsum on the embedding, not on its transpose: XLA:CPU cannot run that transpose's bf16 gradient.
            return product(f"{lead}d,vd->{lead}v", hidden.astype(self.config.dtype), weight_VxD)
