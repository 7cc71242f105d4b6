"""spade_jax: a language model that trains itself by self-play, in JAX."""

__version__ = "0.1.0"
