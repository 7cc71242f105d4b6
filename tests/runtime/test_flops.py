import jax
import pytest

from spade_jax.runtime import flops


def test_six_flops_a_parameter_and_token():
    assert flops.training_flops(10) == 60
    assert flops.training_flops(10, frozen=5) == 80


def test_a_cpu_is_measured():
    assert 1e8 < flops.peak_flops_per_second() < 1e15
    assert flops.describe_devices().startswith(f"devices: {jax.device_count()} x cpu, ")


@pytest.mark.parametrize(
    ("kind", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA GB200", 2500),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10G", 70),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("TPU v5 lite", 197),
        ("TPU v5", 459),
        ("NVIDIA H20", None),
        ("TPU7x", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_table(kind, tflops):
    assert flops.peak_of(kind) == (None if tflops is None else pytest.approx(tflops * 1e12))


def test_an_unknown_device_has_no_utilisation(monkeypatch):
    monkeypatch.setattr(flops, "peak_flops_per_second", lambda: None)
    assert flops.describe_devices().endswith("peak unknown, so perf/mfu is left out; add it to runtime/flops.py")
