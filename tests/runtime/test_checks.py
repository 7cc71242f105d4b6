from __future__ import annotations

import pytest
from ml_collections import ConfigDict

from configs import base, spade_tiny
from spade_jax.designer import gate
from spade_jax.designer.gate import novel
from spade_jax.learner import advantage, objective, partitioning
from spade_jax.runtime import checks
from spade_jax.runtime.checks import check_config, check_mesh, resolve_mesh
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import GATE_CHECKS, resolve_preset, set_key


def test_names_are_those_of_the_rooms():
    """Runtime imports no room, so it has its own copy of a few names."""
    assert gate.CHECKS == GATE_CHECKS
    assert novel.TIERS == checks.NOVEL_TIERS
    assert partitioning.AXES == checks.MESH_AXES
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
        ({"rollout.skills": (1, 2, 3)}, r"rollout.skills has 1, which is no skill"),
        ({"rollout.skills": ("a", "a", "b")}, r"names a skill twice"),
        ({"rollout.seeds": 1, "rollout.min_pairs": 1}, r"rollout.seeds=1 is out of range; give a value at least 2"),
        ({"rollout.regenerate_every": 6}, r"learner.max_staleness=4 drops every designer sample.*use at least 5"),
        ({"sampler.designer.max_new_tokens": 1024}, r"max_new_tokens=1024 leaves no room for a prompt in .*=1024"),
        ({"sampler.block": 2048}, r"sampler.block=2048 is above sampler.context; use at most 1024"),
        ({"sampler.agent.top_p": 0.0}, r"sampler.agent.top_p=0.0 is out of range; give a value between 1e-06 and 1"),
        ({"learner.buckets": (256, 512)}, r"ends below sampler.context=1024.*add 1024"),
        ({"learner.buckets": (1024, 512)}, r"must be ascending"),
        ({"learner.micro_batch_tokens": 1000}, r"micro_batch_tokens=1000 .*use at least 1024"),
        ({"learner.estimator.agent": "gae"}, r"learner.estimator.agent='gae' is not known; use ema, .* leave_one_out"),
        ({"learner.optimizer.learning_rate": float("nan")}, r"learning_rate=nan is out of range"),
        ({"gate.checks": ("parse", "contract", "novelty")}, r"'novelty', which is not a check"),
        ({"gate.novel_tiers": ("source", "sauce")}, r"novel_tiers has .sauce., which is no tier; use some of source"),
        ({"gate.checks": ("parse", "contract", "solvable", "determinism")}, r"out of order"),
        ({"gate.checks": ("determinism",)}, r"must begin with 'parse' and 'contract'"),
        ({"gate.distinct_observations": 9}, r"gate.distinct_observations=9 is above gate.seeds; use at most 8"),
        ({"learner.role_weight.agent": 0.0, "learner.role_weight.designer": 0.0}, r"train nothing"),
        ({"corpus.path": "/no/such/file.jsonl"}, r"corpus.path=/no/such/file.jsonl does not exist"),
        ({"policy.init": "/no/such/model.npz"}, r"policy.init=/no/such/model.npz is not a file"),
        ({"tokens.tokenizer": "/no/such.model"}, r"tokens.tokenizer=/no/such.model is not a file"),
    ],
)
def test_impossible_combination_is_named(changes, message):
    config = resolve_preset(spade_tiny.get_config())
    for key, value in changes.items():
        set_key(config, key, value)
    with pytest.raises(UsageError, match=message) as caught:
        check_config(config)
    assert "\n" not in str(caught.value)


def test_empty_corpus_folder(tmp_path):
    config = resolve_preset(spade_tiny.get_config())
    config.corpus.path = str(tmp_path)
    with pytest.raises(UsageError, match="is an empty folder"):
        check_config(config)
    (tmp_path / "a.txt").write_text("text")
    check_config(config)


def _mesh(data=-1, fsdp=1, tensor=1, expert=1):
    return ConfigDict({"data": data, "fsdp": fsdp, "tensor": tensor, "expert": expert})


def test_mesh_is_filled():
    assert resolve_mesh(_mesh(), 1) == {"data": 1, "fsdp": 1, "tensor": 1, "expert": 1}
    assert resolve_mesh(_mesh(tensor=2), 8) == {"data": 4, "fsdp": 1, "tensor": 2, "expert": 1}
    assert resolve_mesh(_mesh(data=2, fsdp=-1, tensor=2), 8) == {"data": 2, "fsdp": 2, "tensor": 2, "expert": 1}
    assert list(resolve_mesh(_mesh(), 8)) == ["data", "fsdp", "tensor", "expert"]


@pytest.mark.parametrize(
    ("mesh", "devices", "message"),
    [
        (_mesh(tensor=3), 8, r"mesh.tensor=3, .* cannot be laid over 8 device\(s\).*divides 8"),
        (_mesh(data=4), 8, r"use sizes whose product is 8"),
        (_mesh(data=16), 8, r"cannot be laid over 8"),
        (_mesh(fsdp=-1), 8, r"mesh.data=-1 and mesh.fsdp=-1 both take the rest"),
        (_mesh(fsdp=0), 8, r"mesh.fsdp=0 is not a size"),
    ],
)
def test_impossible_mesh(mesh, devices, message):
    with pytest.raises(UsageError, match=message):
        resolve_mesh(mesh, devices)


def test_mesh_against_the_policy():
    policy = {"num_heads": 8, "num_kv_heads": 4, "mlp_dim": 96, "vocab_size": 256, "embed_dim": 64}
    sizes = {"data": 1, "fsdp": 1, "tensor": 4, "expert": 1}
    check_mesh(sizes, policy)
    with pytest.raises(UsageError, match=r"mesh.tensor=8 does not divide the policy's num_kv_heads=4; use 1, 2 or 4"):
        check_mesh(sizes | {"tensor": 8}, policy)
    with pytest.raises(UsageError, match=r"mesh.fsdp=3 does not divide the policy's embed_dim=64; use 1, 2, 4 or 8"):
        check_mesh(sizes | {"fsdp": 3}, policy)
