"""Products of activations with weights, in the operands' precision and summed in float32, forwards and backwards."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

# A matrix, or a matrix and the two factors of what its adapter adds.
Weight = tuple[jax.Array, ...]


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


def project(spec: str, x: jax.Array, weight: Weight) -> jax.Array:
    """`product` with a weight and with its adapter if it has one; float32.

    Args:
      spec: the weight's indices are those it is stacked over, those that are summed, those of the output, in this
        order; "r" is taken.
    """
    matrix, *factors = weight
    out = product(spec, x, matrix)
    if not factors:
        return out
    in_x, in_w, of_out = spec.replace("->", ",").split(",")
    summed = "".join(index for index in in_w if index not in of_out)
    stacked, outputs = in_w.split(summed)
    low = f"{of_out.removesuffix(outputs)}r"
    first, second = factors
    narrow = product(f"{in_x},{stacked}{summed}r->{low}", x, first).astype(x.dtype)
    return out + product(f"{low},{stacked}r{outputs}->{of_out}", narrow, second)
