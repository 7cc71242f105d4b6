"""The distribution drawn from, against a reference in NumPy that sorts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.sampler.sampling import SamplingConfig, pack
from spade_jax.sampler.sampling import draw as eager_draw
from spade_jax.sampler.sampling import truncated_weights as eager_weights

draw, truncated_weights = jax.jit(eager_draw), jax.jit(eager_weights)

V = 150  # not a multiple of the draw's group size


def reference(logits: np.ndarray, config: SamplingConfig) -> np.ndarray:
    """float64[V] probabilities of the distribution described at the head of sampling.py."""
    if config.temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    z = logits.astype(np.float64) / config.temperature
    p = np.exp(z - z.max())
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    keep = np.zeros(len(p), bool)
    keep[order[: config.top_k or len(p)]] = True
    p = np.where(keep, p, 0) / p[keep].sum()
    if config.top_p < 1:
        before = np.cumsum(p[order]) - p[order]
        keep = np.zeros(len(p), bool)
        keep[order[before < config.top_p]] = True
        p = np.where(keep, p, 0)
    p = np.where(p >= config.min_p * p.max(), p, 0)
    return p / p.sum()


CONFIGS = [
    SamplingConfig(),
    SamplingConfig(temperature=0.6),
    SamplingConfig(temperature=0),
    SamplingConfig(top_k=1),
    SamplingConfig(top_k=7),
    SamplingConfig(temperature=1.5, top_p=0.8),
    SamplingConfig(top_p=1e-6),
    SamplingConfig(min_p=0.2),
    SamplingConfig(temperature=0.7, top_k=20, top_p=0.9, min_p=0.05),
    SamplingConfig(top_k=10_000),
]


def many_logits(rows: int) -> np.ndarray:
    return np.asarray(3 * jax.random.normal(jax.random.key(5), (rows, V)), np.float32)


def test_weights_and_logp_against_the_reference():
    logits = many_logits(len(CONFIGS))
    settings = pack(CONFIGS)
    weights = np.asarray(truncated_weights(jnp.asarray(logits), settings)[0])
    expected = np.stack([reference(row, c) for row, c in zip(logits, CONFIGS, strict=True)])
    sampled = settings.temperature > 0
    np.testing.assert_allclose((weights / weights.sum(-1, keepdims=True))[sampled], expected[sampled], atol=1e-6)
    run = jax.jit(lambda u: draw(jnp.asarray(logits), settings, u))
    for u in np.linspace(0, 0.9999, 23):
        tokens, logp = (np.asarray(x) for x in run(jnp.full(len(CONFIGS), u, jnp.float32)))
        chosen = expected[np.arange(len(CONFIGS)), tokens]
        assert (chosen > 0).all()
        np.testing.assert_allclose(logp, np.log(chosen), atol=1e-5)
        # The draw inverts the cumulative distribution.
        cdf = np.cumsum(expected, -1)[np.arange(len(CONFIGS)), tokens]
        assert ((u <= cdf + 1e-6) & (u >= cdf - chosen - 1e-6))[sampled].all()


def test_greedy_takes_the_first_of_equal_maxima_with_probability_one():
    logits = jnp.asarray([[0.0, 2.0, 2.0, 1.0]])
    token, logp = draw(logits, pack([SamplingConfig(temperature=0)]), jnp.array([0.99]))
    assert int(token[0]) == 1 and float(logp[0]) == 0


def test_by_hand():
    logits = jnp.log(jnp.array([[0.5, 0.25, 0.125, 0.125]]))
    # top_p 0.7 keeps 0.5 and 0.25, renormalised to 2/3 and 1/3.
    for u, token, p in ((0.0, 0, 2 / 3), (0.66, 0, 2 / 3), (0.67, 1, 1 / 3), (0.999, 1, 1 / 3)):
        drawn, logp = draw(logits, pack([SamplingConfig(top_p=0.7)]), jnp.array([u]))
        assert int(drawn[0]) == token
        np.testing.assert_allclose(np.exp(logp[0]), p, rtol=1e-5)
    # Temperature 1/2 squares the odds: 16 : 4 : 1 : 1.
    _, logp = draw(logits, pack([SamplingConfig(temperature=0.5)]), jnp.array([0.0]))
    np.testing.assert_allclose(np.exp(logp[0]), 16 / 22, rtol=1e-5)
    # Ties at the edge of top-k are kept, so k = 3 keeps all four.
    weights, _ = truncated_weights(logits, pack([SamplingConfig(top_k=3)]))
    assert (np.asarray(weights) > 0).all()


def test_a_token_without_probability_is_never_drawn():
    logits = np.full((1, V), -1e30, np.float32)
    logits[0, [3, 100]] = 0.0
    run = jax.jit(lambda u: draw(jnp.asarray(logits), pack([SamplingConfig()]), u)[0])
    largest = np.nextafter(np.float32(1), np.float32(0))
    assert {int(run(jnp.array([u], jnp.float32))[0]) for u in (0.0, 0.3, 0.5, 0.7, largest)} == {3, 100}


def test_empirical_frequencies():
    config = SamplingConfig(temperature=0.8, top_k=30, top_p=0.95)
    logits = many_logits(1)
    n = 20_000
    draws, _ = jax.jit(lambda u: draw(jnp.broadcast_to(logits, (n, V)), pack([config] * n), u))(
        jax.random.uniform(jax.random.key(0), (n,))
    )
    p = reference(logits[0], config)
    frequency = np.bincount(np.asarray(draws), minlength=V) / n
    assert (np.abs(frequency - p) <= 5 * np.sqrt(p * (1 - p) / n)).all()


@pytest.mark.parametrize(
    "field, value", [("temperature", -1.0), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.1), ("min_p", 1.0)]
)
def test_bad_settings_name_the_value(field, value):
    with pytest.raises(ValueError, match=f"{field}={value}"):
        SamplingConfig(**{field: value})
