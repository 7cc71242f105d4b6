"""The policy network: a pre-norm decoder with rotary grouped-query attention and a gated MLP.

One forward pass serves training (no cache) and sampling (with a cache). `DecoderConfig` turns it into the decoders of
the Llama, Mistral, Qwen and Gemma families; its defaults are the plain one.

Axis legend: B rows, T tokens, D residual width, H query heads, K key/value
heads, G = H/K, N heads of either kind, F MLP width, V vocabulary, L layers.
"""

from __future__ import annotations

import functools
import math

import jax
import jax.numpy as jnp
from flax import linen as nn

from spade_jax.policy import blocked, experts
from spade_jax.policy.attention import (
    Local,
    Scores,
    cached_attention,
    causal_attention,
    fused_attention,
    splash_attention,
)
from spade_jax.policy.cache import KVCache, write
from spade_jax.policy.config import DecoderConfig
from spade_jax.policy.lora import FIRST, SECOND
from spade_jax.policy.products import product, project
from spade_jax.policy.rope import Table, apply_rope, pick_table, rope_tables

_ATTENTIONS = {"xla": causal_attention, "cudnn": fused_attention, "splash": splash_attention}
SCALE = "_scale"  # at the end of the name of what multiplies a quantised weight


def _param(module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str, ...], std: float) -> jax.Array:
    """A weight with logical axis names, in the precision of the products; see `params.quantize_params`."""
    config = module.config
    init = nn.with_logical_partitioning(nn.initializers.normal(std), axes)
    weight = module.param(name, init, shape, config.param_dtype).astype(config.dtype)
    if module.has_variable("params", name + SCALE):
        weight = weight * module.get_variable("params", name + SCALE).astype(config.dtype)
    return weight


def _factors(
    module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str, ...], *, stacked: int = 0, summed: int = 1
) -> tuple[jax.Array, ...]:
    """The adapter of a weight, as the two factors of what it adds; () where the weight has none.

    The second factor is 0 at first, so that an adapter begins by adding nothing.

    Args:
      shape, axes: the weight's.
      stacked: how many of them are not the matrix's own.
      summed: how many of those that follow the product sums over.
    """
    lora = module.config.lora
    if lora is None or name not in lora.targets:
        return ()
    inputs = stacked + summed
    draw = nn.initializers.normal(math.prod(shape[stacked:inputs]) ** -0.5)
    factors = (
        (FIRST, draw, (*shape[:inputs], lora.rank), (*axes[:inputs], "lora")),
        (
            SECOND,
            nn.initializers.zeros,
            (*shape[:stacked], lora.rank, *shape[inputs:]),
            (*axes[:stacked], "lora", *axes[inputs:]),
        ),
    )
    first, second = (
        module.param(name + suffix, nn.with_logical_partitioning(init, names), size, jnp.float32)
        for suffix, init, size, names in factors
    )
    return first.astype(module.config.dtype), (second * lora.scale).astype(module.config.dtype)


def _project(
    module: nn.Module,
    name: str,
    x: jax.Array,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    std: float,
    *,
    summed: int = 1,
) -> jax.Array:
    """float32[B, T, ...]: `products.project` of x [B, T, ...] with a weight whose first `summed` axes it sums over.

    Weights go in as matrices: XLA:CPU would rearrange one of more axes in every decode step.
    """
    weight, *factors = _param(module, name, shape, axes, std), *_factors(module, name, shape, axes, summed=summed)
    matrices = [w.reshape(math.prod(w.shape[:summed]), -1) for w in (weight, *factors[:1])]
    matrices += [w.reshape(len(w), -1) for w in factors[1:]]
    out = project("btd,df->btf", x.reshape(*x.shape[:2], -1), tuple(matrices))
    return out.reshape(*x.shape[:2], *shape[summed:])


def _bias(module: nn.Module, name: str, shape: tuple[int, ...], axes: tuple[str, ...]) -> jax.Array:
    """A bias of zeros; it is added to float32 sums."""
    init = nn.with_logical_partitioning(nn.initializers.zeros, axes)
    return module.param(name, init, shape, module.config.param_dtype).astype(jnp.float32)


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale over the last axis, in float32 (Zhang & Sennrich 2019).

    Attributes:
      eps: added to the mean square.
      plus_one: multiply by 1 + scale.
    """

    eps: float
    plus_one: bool = False

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        start = nn.initializers.zeros if self.plus_one else nn.initializers.ones
        init = nn.with_logical_partitioning(start, ("norm",))
        scale = self.param("scale", init, x.shape[-1:], jnp.float32)
        scale = scale + 1 if self.plus_one else scale
        x = x.astype(jnp.float32)
        return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=-1, keepdims=True) + self.eps) * scale


def _norm(config: DecoderConfig, name: str | None = None) -> RMSNorm:
    return RMSNorm(config.norm_eps, config.norm_plus_one, name=name)


class Attention(nn.Module):
    """Grouped-query attention with rotary positions."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD, positions_BxT, rope: Table, cache: KVCache | None, local: Local):
        c = self.config
        rule = Scores(c.query_scale, c.attention_softcap, c.sliding_window)
        in_std = c.embed_dim**-0.5
        out_std = (2 * c.num_layers * c.num_heads * c.head_dim) ** -0.5

        def heads(name, number, axis):
            shape, axes = (c.embed_dim, number, c.head_dim), ("embed", axis, "head_dim")
            return _project(self, name, x_BxTxD, shape, axes, in_std)

        q = heads("q", c.num_heads, "heads")
        k = heads("k", c.num_kv_heads, "kv_heads")
        v = heads("v", c.num_kv_heads, "kv_heads")
        if c.qkv_bias:
            q = q + _bias(self, "q_bias", (c.num_heads, c.head_dim), ("heads", "head_dim"))
            k = k + _bias(self, "k_bias", (c.num_kv_heads, c.head_dim), ("kv_heads", "head_dim"))
            v = v + _bias(self, "v_bias", (c.num_kv_heads, c.head_dim), ("kv_heads", "head_dim"))
        v = v.astype(c.dtype)
        q = nn.with_logical_constraint(q, ("batch", "length", "heads", None))
        k = nn.with_logical_constraint(k, ("batch", "length", "kv_heads", None))
        if c.qk_norm:
            q = _norm(c, "q_norm")(q)
            k = _norm(c, "k_norm")(k)
        q = apply_rope(q, rope).astype(c.dtype)
        k = apply_rope(k, rope).astype(c.dtype)
        q = q.reshape(*q.shape[:2], c.num_kv_heads, c.num_heads // c.num_kv_heads, c.head_dim)
        if cache is None:
            out = _ATTENTIONS[c.attention](q, k, v, rule, local)
        else:
            cache = write(cache, k, v, positions_BxT)
            if c.attention == "splash" and q.shape[1] == 1 and blocked.fits(cache, rule, local):
                out = blocked.blocked_attention(q[:, 0], cache, positions_BxT[:, 0], rule, local)[:, None]
            else:
                out = cached_attention(q, cache, positions_BxT, rule, local)
        shape, axes = (c.num_heads, c.head_dim, c.embed_dim), ("heads", "head_dim", "embed")
        out = _project(self, "o", out.astype(c.dtype), shape, axes, out_std, summed=2)
        if c.output_bias:
            out = out + _bias(self, "o_bias", (c.embed_dim,), ("embed",))
        return out, cache


class MLP(nn.Module):
    """Gated MLP: (act(x W_gate) * x W_up) W_down (SwiGLU, GeGLU; Shazeer 2020, arXiv:2002.05202)."""

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD):
        c = self.config

        def wide(name):
            shape = (c.embed_dim, c.mlp_dim)
            out = _project(self, name, x_BxTxD, shape, ("embed", "mlp"), c.embed_dim**-0.5)
            return out + _bias(self, f"{name}_bias", (c.mlp_dim,), ("mlp",)) if c.mlp_bias else out

        hidden = experts.activation(c.activation)(wide("gate")) * wide("up")
        hidden = nn.with_logical_constraint(hidden.astype(c.dtype), ("batch", "length", "mlp"))
        out_std = (2 * c.num_layers * c.mlp_dim) ** -0.5
        out = _project(self, "down", hidden, (c.mlp_dim, c.embed_dim), ("mlp", "embed"), out_std)
        return out + _bias(self, "down_bias", (c.embed_dim,), ("embed",)) if c.mlp_bias else out


class Experts(nn.Module):
    """A gated MLP per expert, of which every token uses the few that its router finds most probable.

    Each layer leaves its load (see `experts.load`) in the collection `experts.ROUTER`, where that is mutable.
    """

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD, counted_BxT: jax.Array | None):
        c = self.config
        std = c.embed_dim**-0.5
        router = _param(self, "router", (c.embed_dim, c.num_experts), ("embed", "router"), std)

        def weight(name, shape, axes, std):
            shape, axes = (c.num_experts, *shape), ("experts", *axes)
            return _param(self, name, shape, axes, std), *_factors(self, name, shape, axes, stacked=1)

        gate = weight("gate", (c.embed_dim, c.mlp_dim), ("embed", "mlp"), std)
        up = weight("up", (c.embed_dim, c.mlp_dim), ("embed", "mlp"), std)
        out_std = (2 * c.num_layers * c.mlp_dim) ** -0.5
        down = weight("down", (c.mlp_dim, c.embed_dim), ("mlp", "embed"), out_std)
        logits = product("btd,de->bte", x_BxTxD, router)
        probability, weight, expert = experts.route(logits, c.experts_per_token, c.normalised_router)
        if self.is_mutable_collection(experts.ROUTER) and not self.is_initializing():
            self.sow(experts.ROUTER, "load", experts.load(probability, expert, counted_BxT))
        weights = gate, up, down
        return experts.mix(c.activation, weights, x_BxTxD, weight, expert, frozen=c.lora is not None)


class Block(nn.Module):
    """One layer: x += attention(norm(x)); x += mlp(norm(x)). The residual stream is float32.

    With `sandwich_norm` what is added is normalised once more.
    """

    config: DecoderConfig

    @nn.compact
    def __call__(self, x_BxTxD, cache: KVCache | None, positions_BxT, tables, counted_BxT, local: Local | None):
        c = self.config
        local = c.is_local(0) if local is None else local  # None: all layers are of one kind
        with jax.named_scope("attention"):
            h = _norm(c, "attention_norm")(x_BxTxD).astype(c.dtype)
            h, cache = Attention(c, name="attention")(h, positions_BxT, pick_table(tables, local), cache, local)
            x_BxTxD = x_BxTxD + (_norm(c, "attention_post_norm")(h) if c.sandwich_norm else h)
        with jax.named_scope("mlp"):
            h = _norm(c, "mlp_norm")(x_BxTxD).astype(c.dtype)
            h = Experts(c, name="mlp")(h, counted_BxT) if c.num_experts else MLP(c, name="mlp")(h)
            x_BxTxD = x_BxTxD + (_norm(c, "mlp_post_norm")(h) if c.sandwich_norm else h)
        return nn.with_logical_constraint(x_BxTxD, ("batch", "length", None)), cache


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _layer(config: DecoderConfig, local: bool, rules: tuple, variables, *inputs):
    """A layer by itself, traced and lowered once for all that are alike; in the compiled program nothing is left of it.

    Args:
      rules: those in force for logical axes, which jit does not tell apart by itself.
    """
    del rules
    return Block(config, parent=None).apply(variables, *inputs, local)


class Decoder(nn.Module):
    """Decoder-only language model; see `DecoderConfig` for its shape.

    Parameters are stacked over layers (leading axis "layers"), because the layers
    are one scanned block: it compiles once, not L times.

    Attributes:
      config: the network's shape.
      unrolled: run the same blocks one after the other, on parameters from
        `params.unrolled_params` and on a tuple of per-layer caches. Sampling wants
        this: a scan would copy every layer's weights and cache in every call and step.
    """

    config: DecoderConfig
    unrolled: bool = False

    def setup(self):
        c = self.config
        self.embedding = _param(self, "embedding", (c.vocab_size, c.embed_dim), ("vocab", "embed"), 0.02)
        if not c.tied_head:
            shape = (c.vocab_size, c.embed_dim)
            self.head_kernel = _param(self, "head_kernel", shape, ("vocab", "embed"), c.embed_dim**-0.5)
        self.final_norm = _norm(c)
        if self.unrolled:
            self.layers = [Block(c) for _ in range(c.num_layers)]
            return
        # prevent_cse guards against undoing the recomputation, which cannot happen across a scan.
        block = nn.remat(Block, prevent_cse=False) if c.remat else Block
        self.layers = nn.scan(
            block,
            variable_axes={"params": 0, experts.ROUTER: 0},
            split_rngs={"params": True},
            in_axes=(0, nn.broadcast, nn.broadcast, nn.broadcast, 0 if c.mixed_layers else nn.broadcast),
            length=c.num_layers,
            metadata_params={nn.PARTITION_NAME: "layers"},
        )(c)

    def __call__(
        self,
        tokens_BxT,
        positions_BxT,
        cache: KVCache | tuple[KVCache, ...] | None = None,
        counted_BxT: jax.Array | None = None,
    ):
        """Runs the network up to and including the final norm.

        Args:
          tokens_BxT: int32[B, T] token ids.
          positions_BxT: int32[B, T]. Without a cache, 0..T-1 in every row. With one,
            a token's index in its conversation; positions >= C mark padding, which
            writes nothing and whose output is meaningless.
          cache: keys and values of earlier tokens (row b continues slot b), one per
            layer if unrolled; or None to attend causally within the T tokens only.
          counted_BxT: bool[B, T], tokens that count in the experts' load; None counts all.

        Returns:
          (float32[B, T, D] hidden states for `head`, the cache with the new tokens or None).
        """
        c = self.config
        with jax.named_scope("embed"):
            # Whole on every device for the lookup: that is one matrix, and otherwise XLA moves the whole batch's rows.
            matrix_VxD = nn.with_logical_constraint(self.embedding, ("vocab", None))
            x_BxTxD = matrix_VxD[tokens_BxT].astype(jnp.float32)
            if c.embedding_scale != 1.0:
                x_BxTxD = x_BxTxD * c.embedding_scale
            x_BxTxD = nn.with_logical_constraint(x_BxTxD, ("batch", "length", None))
            tables = rope_tables(c, positions_BxT)
        with jax.named_scope("layers"):
            if self.unrolled:
                caches = cache if cache is not None else (None,) * c.num_layers
                done, rules = [], tuple(nn.get_logical_axis_rules())
                for i, (layer, layer_cache) in enumerate(zip(self.layers, caches, strict=True)):
                    inputs = x_BxTxD, layer_cache, positions_BxT, tables, counted_BxT
                    x_BxTxD, layer_cache = _layer(c, c.is_local(i), rules, layer.variables, *inputs)
                    done.append(layer_cache)
                cache = None if cache is None else tuple(done)
            else:
                local = jnp.array(c.local_layers) if c.mixed_layers else None
                x_BxTxD, cache = self.layers(x_BxTxD, cache, positions_BxT, tables, counted_BxT, local)
        with jax.named_scope("final_norm"):
            return self.final_norm(x_BxTxD), cache

    def head(self, hidden: jax.Array) -> jax.Array:
        """float32[..., D] hidden states to float32[..., V] logits."""
        weight_VxD = self.embedding if self.config.tied_head else self.head_kernel
        with jax.named_scope("head"):
            lead = "xyzw"[: hidden.ndim - 1]
            # An einsum on the embedding, not on its transpose: XLA:CPU cannot run that transpose's bf16 gradient.
            logits = product(f"{lead}d,vd->{lead}v", hidden.astype(self.config.dtype), weight_VxD)
            cap = self.config.logit_softcap
            return jnp.tanh(logits / cap) * cap if cap else logits
