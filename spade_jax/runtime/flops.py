"""How much of the devices' arithmetic an update uses (model flops utilisation)."""

from __future__ import annotations

import functools
import time

# Dense bf16 peak of one device in flop/s, from the makers' data sheets, by a part of its kind's name.
_PEAKS = {
    "H200": 989e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40": 181e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5p": 459e12,
    "TPU v5": 459e12,
    "TPU v6": 918e12,
}
_PROBE_SIZE, _PROBE_RUNS = 1024, 3


@functools.cache
def peak_flops_per_second() -> float:
    """Peak of all devices together; of a kind that is not listed (a CPU), what a matrix product reaches."""
    import jax  # here, so that importing this module starts no backend

    kind = jax.devices()[0].device_kind
    for name, peak in _PEAKS.items():
        if name in kind:
            return peak * jax.device_count()
    x = jax.numpy.ones((_PROBE_SIZE, _PROBE_SIZE))
    product = jax.jit(lambda a: a @ a)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(_PROBE_RUNS):
        started = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return 2.0 * _PROBE_SIZE**3 / best


def training_flops(params: int, tokens: int) -> float:
    """6 flops per parameter and token: forward 2, backward 4 (Kaplan et al. 2020, arXiv:2001.08361)."""
    return 6.0 * params * tokens
