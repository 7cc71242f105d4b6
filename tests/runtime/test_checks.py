from __future__ import annotations

import math
import re

import pytest

from configs import base, spade_tiny, spiral_tiny, spiral_tiny_multi
from spade_jax.designer import gate, prompts, tool_prompts
from spade_jax.designer.gate import novel
from spade_jax.envs.games import GAMES, kuhn_poker, textarena
from spade_jax.learner import advantage, objective
from spade_jax.policy import config as policy_config
from spade_jax.rollout import players
from spade_jax.runtime import checks
from spade_jax.runtime.checks import check_config, check_mesh
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import GATE_CHECKS, get_key, resolve_preset, set_key
from spade_jax.runtime.workdir import flatten
from spade_jax.sandbox import layers


def test_names_are_those_of_the_rooms():
    """Runtime imports no room, so it has its own copy of a few names."""
    assert gate.CHECKS == GATE_CHECKS
    assert {"game": prompts.SKILLS, "tool": tool_prompts.DOMAINS} == checks.SKILLS
    assert checks._CHOICES["sandbox.isolation"] == tuple(layers.ISOLATION)
    assert base.get_config().sandbox.required == layers.REQUIRED
    assert novel.TIERS == checks.NOVEL_TIERS
    assert checks.LORA_TARGETS == policy_config.LORA_TARGETS
    assert checks.KUHN_PAYOFFS == kuhn_poker.PAYOFFS
    assert checks.TEXTARENA == textarena.PREFIX
    assert set(base.get_config().games) == set(GAMES)
    assert checks._CHOICES["selfplay.context"] == players.CONTEXTS
    assert checks._CHOICES["learner.estimator.agent"] == advantage.ESTIMATORS
    assert {*checks._CHOICES["learner.estimator.designer"], "ema"} == set(advantage.ESTIMATORS)
    assert checks._CHOICES["learner.aggregation"] == objective.AGGREGATIONS


def test_base_passes():
    check_config(resolve_preset(base.get_config()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.min_pairs": 9}, r"rollout.min_pairs=9 is above rollout.seeds=8.*use at most 8"),
        ({"rollout.active_skills": 7}, r"rollout.active_skills=7 is above the number of rollout.skills; use at most 6"),
        ({"rollout.places_per_skill": 1}, r"rollout.places_per_skill=1 .* use at least 2"),
        ({"rollout.skills": ()}, r"rollout.skills=\(\) is empty"),
        ({"rollout.skills": (1, 2, 3)}, r"rollout.skills has 1, which is none of rollout.kind=game"),
        ({"rollout.skills": ("optimisation",)}, r"has 'optimisation', which is none of .*; use .* optimization,"),
        ({"rollout.kind": "tool"}, r"has 'mathematical reasoning', which is none of .*=tool; use .* inventory,"),
        ({"rollout.skills": ("optimization", "optimization")}, r"names a skill twice"),
        ({"rollout.seeds": 1, "rollout.min_pairs": 1}, r"rollout.seeds=1 is out of range; give a value at least 2"),
        ({"rollout.regenerate_every": 6}, r"learner.max_staleness=4 drops every designer sample.*use at least 5"),
        ({"rollout.max_staleness": 4}, r"max_staleness=4 may draw .*=4 then drops, since designer .* wait 1 more; use"),
        ({"rollout.max_staleness": 4}, r"use at most 3, or learner.max_staleness=5"),
        ({"rollout.max_staleness": 5, "rollout.environments": "bundled"}, r"=4 then drops; use at most 4, or learner"),
        ({"sampler.on_swap": "keep"}, r"sampler.on_swap='keep' is not known; use reprefill or stale"),
        ({"sampler.designer.max_new_tokens": 1024}, r"max_new_tokens=1024 leaves no room for a prompt in .*=1024"),
        ({"policy.lora.rank": -1}, r"policy.lora.rank=-1 is out of range; give a value at least 0"),
        ({"policy.lora.rank": 4, "policy.lora.alpha": 0.0}, r"policy.lora.alpha=0.0 is out of range"),
        ({"policy.lora.rank": 4, "policy.lora.targets": ("q", "router")}, r"can have an adapter; use some of q, k, v"),
        ({"policy.lora.rank": 4, "policy.lora.targets": ()}, r"policy.lora.targets=\(\) .* use some of q, k, v"),
        ({"sampler.block": 2048}, r"sampler.block=2048 is above sampler.context; use at most 1024"),
        ({"sampler.agent.top_p": 0.0}, r"sampler.agent.top_p=0.0 is out of range; give a value between 1e-06 and 1"),
        ({"learner.buckets": (256, 512)}, r"ends below sampler.context=1024.*add 1024"),
        ({"learner.buckets": (1024, 512)}, r"must be ascending"),
        (
            {"learner.optimizer.schedule": "cosine", "learner.optimizer.warmup_steps": 9, "run.steps": 9},
            r"warmup_steps=9 is above what leaves the cosine a step of the run; use at most 8",
        ),
        ({"checkpoint.keep_period": -1}, r"checkpoint.keep_period=-1 is out of range; give a value at least 0"),
        ({"profile.steps": "5:5"}, r"profile.steps='5:5' names no steps; give first:last"),
        ({"learner.micro_batch_tokens": 1000}, r"micro_batch_tokens=1000 .*use at least 1024"),
        ({"learner.estimator.agent": "gae"}, r"learner.estimator.agent='gae' is not known; use ema, .* leave_one_out"),
        ({"learner.optimizer.learning_rate": float("nan")}, r"learning_rate=nan is out of range"),
        ({"gate.checks": ("parse", "contract", "novelty")}, r"'novelty', which is not a check"),
        ({"gate.novel_tiers": ("source", "sauce")}, r"novel_tiers has .sauce., which is no tier; use some of source"),
        ({"gate.checks": ("parse", "contract", "solvable", "determinism")}, r"out of order"),
        ({"gate.checks": ("determinism",)}, r"must begin with 'parse' and 'contract'"),
        ({"gate.distinct_observations": 9}, r"gate.distinct_observations=9 is above gate.seeds; use at most 8"),
        ({"learner.role_weight.agent": 0.0, "learner.role_weight.designer": 0.0}, r"train nothing"),
        ({"sandbox.isolation": "limits"}, r"sandbox.isolation='limits' is not known; use strict, best_effort or none"),
        ({"sandbox.memory_mb_total": 128}, r"memory_mb_total=128 is less than .*=256; use at least 256"),
        ({"corpus.path": "/no/such/file.jsonl"}, r"corpus.path=/no/such/file.jsonl does not exist"),
        ({"corpus.path": "builtin,/no/such/folder"}, r"corpus.path=/no/such/folder does not exist"),
        ({"corpus.path": "builtin,builtin"}, r"corpus.path=builtin,builtin names a source twice"),
        ({"corpus.path": "builtin,"}, r"corpus.path='builtin,' has an empty name"),
        ({"corpus.path": ""}, r"corpus.path='' has an empty name"),
        ({"corpus.weights": (1, 2)}, r"has 2 weight\(s\) for the 1 source\(s\) of corpus.path=builtin; give one each"),
        ({"corpus.weights": (-1.0,)}, r"corpus.weights=\(-1.0,\) has -1.0; give positive numbers"),
        ({"corpus.weights": (0,)}, r"corpus.weights=\(0,\) has 0; .* leave out a source that weighs 0"),
        ({"corpus.weights": ("much",)}, r"corpus.weights=\('much',\) has 'much'; give positive numbers"),
        ({"corpus.weights": (float("nan"),)}, r"corpus.weights=\(nan,\) has nan; give positive numbers"),
        ({"corpus.path": "x" * 5000}, r"corpus.path=x{197}\.\.\. cannot be reached \(File name too long\)"),
        ({"policy.init": "a\0b"}, r"is no path \(.*embedded null"),
        ({"tokens.tokenizer": "/"}, r"tokens.tokenizer=/ is a folder without tokenizer.json; give the path of a"),
        ({"policy.init": "/"}, r"policy.init=/ is a folder without config.json; give a Hugging Face folder"),
        ({"tokens.tokenizer": "policy"}, r"tokens.tokenizer=policy, but policy.init=tiny brings no tokenizer; give"),
        ({"policy.architecture.num_experts": -1}, r"num_experts=-1 is out of range"),
        ({"compile_cache.dir": ""}, r"compile_cache.dir='' is empty; use auto, off, or a directory"),
        ({"checkpoint.dir": "gs://bucket"}, r"checkpoint.dir=gs://bucket is in no store that we know; give gs://BUCKET/P"),
        ({"checkpoint.dir": "ftp://a/b"}, r"checkpoint.dir=ftp://a/b is in no store that we know; give gs://BUCKET/PATH"),
        ({"sandbox.hosts": "slurm"}, r"sandbox.hosts='?slurm'? is not known; use local or ray"),
        ({"sandbox.ray_address": ""}, r"sandbox.ray_address='' names no cluster; give HOST:PORT, or auto"),
        ({"learner.optimizer_steps": 193}, r"optimizer_steps=193 is above the number of plays .*; use at most 192"),
        ({"policy.architecture.num_kv_heads": 3}, r"num_kv_heads=3 does not divide num_heads=8; use a divisor of it"),
        ({"policy.architecture.head_dim": 7}, r"head_dim=7 is odd.*; use 8"),
        ({"designer.style": "x" * 5000}, r"designer.style='x{196}\.\.\. is not known; use tiny or full"),
        ({"policy.init": "/no/such/model.npz"}, r"policy.init=/no/such/model.npz does not exist"),
        ({"tokens.tokenizer": "/no/such.model"}, r"tokens.tokenizer=/no/such.model does not exist"),
    ],
)
def test_impossible_combination_is_named(changes, message):
    config = resolve_preset(spade_tiny.get_config())
    for key, value in changes.items():
        set_key(config, key, value)
    with pytest.raises(UsageError, match=message) as caught:
        check_config(config)
    assert "\n" not in str(caught.value)


def test_of_several_processes_one_update_at_most_lags():
    config = resolve_preset(spade_tiny.get_config())
    set_key(config, "rollout.max_staleness", 1)
    checks.check_processes(config, 4)
    set_key(config, "rollout.max_staleness", 2)
    checks.check_processes(config, 1)
    with pytest.raises(UsageError, match=r"^rollout.max_staleness=2 .* than 4 processes can .*; use 1, or 0$"):
        checks.check_processes(config, 4)


def test_every_number_of_the_tree_has_a_range():
    keys = flatten(resolve_preset(base.get_config()).to_dict())
    numbers = {key for key, value in keys.items() if isinstance(value, (int, float)) and not isinstance(value, bool)}
    assert {key for key in numbers if not key.startswith("mesh.")} == set(checks.ranges())


@pytest.mark.parametrize("key", checks.ranges())
def test_numbers_out_of_range_are_refused(key):
    least, greatest = checks.ranges()[key]
    config = resolve_preset(spade_tiny.get_config())
    if isinstance(get_key(config, key), int):
        values = [least - 1, 2**31 if greatest == math.inf else greatest + 1, 2**70]
    else:
        values = [-1.0, -math.inf, math.nan, 1e300 if greatest < math.inf else math.inf]
        if key in checks._MAY_BE_INFINITE:
            values.pop()
    for value in values:
        set_key(config, key, value)
        with pytest.raises(UsageError, match=rf"^{re.escape(f'{key}={value}')} is out of range; give a value"):
            check_config(config)


def test_an_infinite_clip_and_cap_are_none():
    config = resolve_preset(spade_tiny.get_config())
    config.learner.clip_high = config.learner.tis_cap = math.inf
    check_config(config)


def test_empty_corpus_folder(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path)
    with pytest.raises(UsageError, match="is an empty folder"):
        check_config(config)
    (tmp_path / "a.txt").write_text("text")
    check_config(config)


def test_mesh_against_the_policy():
    policy = {"num_heads": 8, "num_kv_heads": 4, "mlp_dim": 96, "vocab_size": 256, "embed_dim": 64, "num_experts": 0}
    sizes = {"data": 1, "fsdp": 1, "tensor": 4, "expert": 1}
    check_mesh(sizes, policy)
    with pytest.raises(UsageError, match=r"mesh.tensor=8 does not divide the policy's num_kv_heads=4; use 1, 2 or 4"):
        check_mesh(sizes | {"tensor": 8}, policy)
    with pytest.raises(UsageError, match=r"mesh.fsdp=3 does not divide the policy's embed_dim=64; use 1, 2, 4 or 8"):
        check_mesh(sizes | {"fsdp": 3}, policy)
    check_mesh(sizes | {"expert": 3}, policy)  # without experts the axis holds rows
    with pytest.raises(UsageError, match=r"mesh.expert=3 does not divide the policy's num_experts=8; use 1, 2, 4 or 8"):
        check_mesh(sizes | {"expert": 3}, policy | {"num_experts": 8})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selfplay.games": ()}, r"selfplay.games=\(\) is empty"),
        ({"selfplay.games": ("chess",)}, r"selfplay.games has 'chess', which is no game; use some of kuhn_poker, "),
        ({"evaluation.games": (3,)}, r"evaluation.games has 3, which is no game"),
        ({"selfplay.games": ("snake", "snake")}, r"names a game twice"),
        ({"selfplay.weights": (1.0, 2.0)}, r"has 2 weight\(s\) for the 1 game"),
        ({"selfplay.weights": (0.0,)}, r"selfplay.weights=\(0.0,\) has 0.0; give positive numbers"),
        ({"evaluation.opponents": ("stockfish",)}, r"evaluation.opponents has 'stockfish', which is none"),
        ({"selfplay.opponent": "endpoint"}, r"selfplay.endpoint.url='' is no http:// or https:// address"),
        ({"selfplay.opponent": "random", "selfplay.games": ("textarena:X-v0",)}, r"random cannot play .* TextArena"),
        ({"selfplay.exploring_starts": 2, "selfplay.games": ("textarena:X-v0",)}, r"exploring_starts=2 needs legal"),
        ({"selfplay.context": "conversation", "sampler.slots": 1}, r"sampler.slots=1 cannot hold"),
        ({"evaluation.temperature": 0.0}, r"evaluation.temperature=0 makes every move certain"),
        ({"learner.optimizer_steps": 129}, r"optimizer_steps=129 is above selfplay.matches"),
        ({"games.kuhn_poker.payoff": "chips"}, r"payoff='chips' is not known; use winner or margin"),
    ],
)  # fmt: skip
def test_self_play_that_cannot_work(changes, message):
    config = spiral_tiny.get_config()
    for key, value in changes.items():
        set_key(config, key, value)
    with pytest.raises(UsageError, match=message):
        check_config(resolve_preset(config))


@pytest.mark.parametrize("words", [None, "runlocal", "compat", "tictactoe", "runlocal,compat"])
def test_variants_of_self_play_pass(words):
    check_config(resolve_preset(spiral_tiny.get_config(words)))
    if words != "tictactoe":
        check_config(resolve_preset(spiral_tiny_multi.get_config(words)))
