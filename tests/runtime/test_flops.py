from spade_jax.runtime import flops


def test_six_flops_a_parameter_and_token():
    assert flops.training_flops(params=10, tokens=3) == 180


def test_a_cpu_is_measured():
    assert 1e8 < flops.peak_flops_per_second() < 1e15
