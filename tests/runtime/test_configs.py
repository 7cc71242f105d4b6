from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path

import pytest

from configs import (
    base,
    spade_gemma3_4b,
    spade_qwen3_4b,
    spade_qwen3_8b,
    spade_qwen3_30b_a3b,
    spade_smollm2_135m,
    spade_tiny,
    spade_tiny_tools,
    spiral_qwen3_4b_kuhn,
    spiral_qwen3_4b_multi,
)
from configs.words import parse_words
from spade_jax import compose
from spade_jax.designer import tool_prompts
from spade_jax.policy.config import LORA_TARGETS
from spade_jax.policy.huggingface import to_huggingface
from spade_jax.runtime.checks import check_config
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import SWITCHES, get_key, resolve_preset
from spade_jax.runtime.workdir import flatten

MODEL_TYPES = {
    "configs.spade_qwen3_4b": "qwen3",
    "configs.spade_qwen3_8b": "qwen3",
    "configs.spade_qwen3_30b_a3b": "qwen3_moe",
    "configs.spade_gemma3_4b": "gemma3_text",
    "configs.spiral_qwen3_4b_kuhn": "qwen3",
    "configs.spiral_qwen3_4b_multi": "qwen3",
}
CONFIGS = Path(base.__file__).parent


def test_every_key_of_the_base_has_its_comment():
    for line in inspect.getsource(base.get_config).splitlines():
        if re.match(r"\s+(\w+)\.(\w+) = ", line) and "ConfigDict()" not in line:
            assert "  # " in line, line


def test_switches_are_exactly_the_keys_left_open():
    config = base.get_config()
    assert {key for key, value in flatten(config.to_dict()).items() if value is None} == set(SWITCHES)


@pytest.mark.parametrize("preset", ["strict", "paper"])
def test_preset_fills_every_switch_with_the_key_s_type(preset):
    config = base.get_config()
    config.method.preset = preset
    resolved = resolve_preset(config)
    for key, switch in SWITCHES.items():
        assert get_key(resolved, key) == getattr(switch, preset), key
    assert config.method.paired_seeds is None  # the argument is left as it was


def test_single_switch_survives_the_preset():
    config = base.get_config()
    config.method.preset = "paper"
    config.method.paired_seeds = True
    assert resolve_preset(config).method.paired_seeds is True


def test_unknown_preset():
    config = base.get_config()
    config.method.preset = "papre"
    with pytest.raises(UsageError, match="method.preset='papre' is not known; use strict or paper"):
        resolve_preset(config)


def _config_files():
    return [CONFIGS / "base.py", *sorted(CONFIGS.glob("spade_*.py")), *sorted(CONFIGS.glob("spiral_*.py"))]


@pytest.mark.parametrize("path", _config_files(), ids=lambda p: p.stem)
def test_every_config_is_locked_and_resolves(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # configs load from any directory
    spec = importlib.util.spec_from_file_location("config_under_test", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    config = module.get_config()
    assert config.is_locked
    with pytest.raises(AttributeError):
        config.run.sed = 1
    assert set(flatten(config.to_dict())) == set(flatten(base.get_config().to_dict()))


@pytest.mark.parametrize("words", [None, "runlocal", "long", "paper", "runlocal,paper", "long, paper"])
def test_tiny_variants_pass_the_checks(words):
    check_config(resolve_preset(spade_tiny.get_config(words)))


@pytest.mark.parametrize("words", [None, "runlocal", "bundled", "paper", "runlocal,bundled,paper"])
def test_tools_variants_pass_the_checks(words):
    config = spade_tiny_tools.get_config(words)
    check_config(resolve_preset(config))
    assert config.rollout.kind == "tool" and set(config.rollout.skills) < set(tool_prompts.DOMAINS)
    assert config.rollout.environments == ("bundled" if words and "bundled" in words else "designer")
    assert spade_tiny_tools.get_config().rollout.regenerate_every == 4


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (spade_qwen3_4b, "runlocal,paper"),
        (spade_qwen3_8b, "runlocal,paper"),
        (spade_qwen3_30b_a3b, "runlocal,paper"),
        (spade_gemma3_4b, "runlocal,paper"),
        (spiral_qwen3_4b_kuhn, "runlocal,compat"),
        (spiral_qwen3_4b_multi, "runlocal,compat"),
    ],
)
def test_large_models_run_locally_as_tiny_ones_of_their_architecture(module, words):
    with pytest.raises(UsageError, match="policy.init=models/.* does not exist; give a Hugging Face folder"):
        check_config(resolve_preset(module.get_config()))
    config = resolve_preset(module.get_config(words))
    check_config(config)
    shape = compose.policy(config, compose.chat_template(config))[0].config
    # Only a shape of a known family can be exported, so this says that the features go together.
    assert to_huggingface(shape, context=64, dtype="float32")["model_type"] == MODEL_TYPES[module.__name__]


def test_adapters_are_a_variant_of_the_8b_model():
    config = resolve_preset(spade_qwen3_8b.get_config("runlocal,lora"))
    check_config(config)
    shape = compose.policy(config, compose.chat_template(config))[0].config
    assert (shape.lora.rank, shape.lora.scale, shape.lora.targets) == (32, 1.0, LORA_TARGETS)
    assert shape.param_dtype == config.policy.dtype
    assert spade_qwen3_8b.get_config().policy.lora.rank == 0


@pytest.mark.parametrize("module", [spiral_qwen3_4b_kuhn, spiral_qwen3_4b_multi])
def test_spiral_at_scale_has_the_published_settings(module):
    config = module.get_config()
    learner, optimizer = config.learner, config.learner.optimizer
    assert (optimizer.learning_rate, optimizer.b1, optimizer.b2, optimizer.weight_decay) == (1e-6, 0.9, 0.95, 0.0)
    assert (learner.clip_low, learner.clip_high, learner.kl_coefficient, learner.optimizer_steps) == (0.2, 0.2, 0.0, 2)
    assert (learner.estimator.agent, config.selfplay.baseline_decay) == ("ema", 0.95)
    assert (config.sampler.agent.temperature, config.sampler.agent.max_new_tokens) == (1.0, 4096)
    assert (config.selfplay.invalid_penalty, config.selfplay.invalid_bonus) == (1.0, 0.0)
    compat = module.get_config("compat")
    assert (compat.selfplay.invalid_penalty, compat.selfplay.invalid_bonus) == (1.5, 0.5)
    assert compat.games.kuhn_poker.compat


def test_smollm2_variants_pass_the_checks():
    for words in (None, "runlocal", "bundled,paper"):
        check_config(resolve_preset(spade_smollm2_135m.get_config(words)))


def test_tiny_is_as_documented():
    config = spade_tiny.get_config()
    assert config.rollout.active_skills * config.rollout.places_per_skill == 12
    assert (config.rollout.seeds, config.rollout.regenerate_every) == (8, 2)
    assert spade_tiny.get_config("runlocal").run.steps == 4


def test_bad_words():
    with pytest.raises(ValueError, match=r"unknown variant 'runlocl'; known: runlocal \(.*\), long \("):
        spade_tiny.get_config("runlocl")
    with pytest.raises(ValueError, match="exclude each other"):
        spade_tiny.get_config("runlocal,long")
    assert parse_words(" a, ,b", {"a": "", "b": ""}) == {"a", "b"}
