"""Drawing tokens: pure prefill and decode functions, and the engine that batches conversations."""

from spade_jax.sampler.engine import Counters, Engine, Response
from spade_jax.sampler.sampling import SamplingConfig

__all__ = ["Counters", "Engine", "Response", "SamplingConfig"]
