"""How much of the devices' arithmetic an update uses (model flops utilisation)."""

from __future__ import annotations

import functools
import time

# Dense bf16 peak of one device in flop/s, from the makers' data sheets, by a part of its kind's name. The first that
# matches counts, so a name comes before those that are part of it.
_PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "A10G": 70e12,
    "A10": 125e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
    "RTX 4090": 165e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}
_PROBE_SIZE, _PROBE_RUNS = 1024, 3


def peak_of(kind: str) -> float | None:
    """Peak in flop/s of a device whose maker calls it `kind`, None where it is not in the table."""
    return next((peak for name, peak in _PEAKS.items() if name in kind), None)


@functools.cache
def peak_flops_per_second() -> float | None:
    """Peak of all devices together, None where it is unknown; of a CPU, what a matrix product reaches."""
    import jax  # here, so that importing this module starts no backend

    device = jax.devices()[0]
    if device.platform == "cpu":
        return _measured()
    peak = peak_of(device.device_kind)
    return None if peak is None else peak * jax.device_count()


def describe_devices() -> str:
    """One line on the devices and their peak."""
    import jax

    peak = peak_flops_per_second()
    unknown = "peak unknown, so perf/mfu is left out; add it to runtime/flops.py"
    return f"devices: {jax.device_count()} x {jax.devices()[0].device_kind}, " + (
        unknown if peak is None else f"{peak:.3g} flop/s"
    )


def _measured() -> float:
    import jax

    x = jax.numpy.ones((_PROBE_SIZE, _PROBE_SIZE))
    product = jax.jit(lambda a: a @ a)
    product(x).block_until_ready()
    best = float("inf")
    for _ in range(_PROBE_RUNS):
        started = time.perf_counter()
        product(x).block_until_ready()
        best = min(best, time.perf_counter() - started)
    return 2.0 * _PROBE_SIZE**3 / best


def training_flops(trained: int, frozen: int = 0) -> float:
    """Of a token: 6 per parameter, forward 2, backward 4 (Kaplan et al. 2020, arXiv:2001.08361); 4 per frozen one.

    A frozen parameter's own gradient is not computed, but what stands before it gets its gradient through it.
    """
    return 6.0 * trained + 4.0 * frozen
