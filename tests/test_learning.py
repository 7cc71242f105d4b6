"""The agent learns: policy, sampler, sandbox, estimator and update, joined as in train.py, on one environment."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from configs import spade_tiny
from spade_jax import compose, structs
from spade_jax.envs.contract import environment_id
from spade_jax.learner import advantage, batch, step
from spade_jax.learner import state as state_lib
from spade_jax.rollout import episodes as episodes_lib
from spade_jax.rollout.trajectories import training_set
from spade_jax.runtime.presets import resolve_preset
from spade_jax.runtime.seeds import environment_seed

STEPS, PLAYS = 10, 64

# One guess in ten: right is always the lowest number plus 7, which the policy has to find out, and to
# compute for numbers that differ from play to play.
PROGRAM = r'''
import random


class LanternHunt:
    def __init__(self, max_turns=1, **kwargs):
        pass

    def reset(self, seed=None):
        self.low = random.Random(seed).randint(0, 9)
        return f"A number from {self.low} to {self.low + 9} is hidden in the lantern. Guess it in 1 turn.", {}

    def step(self, action):
        won = action == "\\boxed{" + str(self.low + 7) + "}"
        return "That was it." if won else "No.", float(won), True, False, {"success": won}

    def solution(self):
        return [str(self.low + 7)]

    def close(self):
        pass
'''


@pytest.mark.slow
def test_win_rate_rises_on_an_environment_that_is_played():
    config = resolve_preset(spade_tiny.get_config())
    config.learner.optimizer.learning_rate = 4e-4  # one environment: there is no other to disturb
    record = structs.EnvironmentRecord(environment_id(PROGRAM), PROGRAM, "LanternHunt", "mathematical reasoning")
    with compose.sandbox_pool(config) as pool:
        template = compose.chat_template(config)
        model, params = compose.policy(config, template)
        mesh = compose.mesh(config, model)
        optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
        state = compose.train_state(config, model, optimizer, mesh, params)
        update = step.make_update(model, optimizer, mesh, compose.update_config(config))
        buckets, playing = compose.buckets(config, mesh), compose.episode_settings(config)
        engine = compose.engine(config, model, state.params, template, mesh)
        win_rates = []
        for policy_step in range(STEPS):
            engine.set_params(state.params, version=policy_step)
            requests = []
            for play in range(policy_step * PLAYS, (policy_step + 1) * PLAYS):  # never the same instance twice
                seed = environment_seed(record.id, play)
                requests.append(episodes_lib.EpisodeRequest(record, structs.PLAIN, play, seed, f"learning/{play}"))
            episodes = episodes_lib.play_episodes(engine, pool, template, requests, playing)
            win_rates.append(np.mean([episode.won for episode in episodes]))
            sequences = training_set([record], episodes, [], playing.sampling.temperature, oldest=policy_step)
            advantages, keep, baselines = advantage.estimate_on_hosts(
                mesh,
                np.array([sequence.episode_return for sequence in sequences]),
                np.array([sequence.role for sequence in sequences]),
                np.array([sequence.group for sequence in sequences]),
                np.array([True] * len(sequences)),
                state.baselines,
                estimators=compose.estimators(config),
                num_groups=compose.num_groups(config),
            )
            sequences = [dataclasses.replace(s, weight=float(k)) for s, k in zip(sequences, keep, strict=True)]
            minibatches, _ = batch.pack(sequences, advantages, buckets, minibatches=1)
            state, _ = update(state._replace(baselines=baselines), minibatches, None)
    before, after = np.mean(win_rates[:2]), np.mean(win_rates[-2:])
    assert after > before + 0.15, [f"{rate:.2f}" for rate in win_rates]
