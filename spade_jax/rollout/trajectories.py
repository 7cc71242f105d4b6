"""Episodes to training sequences."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from spade_jax import structs
from spade_jax.designer.payment import Payment


def conversation_trajectory(
    episode: structs.Episode, group: int, temperature: float
) -> structs.Trajectory:
    """An episode as one sequence (`context="conversation"`): every turn, in order.

    Only drawn tokens are in the loss. `group` is what group-relative estimators
    compare within; `temperature` is what the tokens were drawn at.
    """
    tokens, mask, logp, versions = [], [], [], []
    for turn in episode.turns:
        prompt, response = turn.prompt_tokens, turn.response_tokens
        tokens += [prompt, response]
        mask += [np.zeros(len(prompt), bool), np.ones(len(response), bool)]
        logp += [np.zeros(len(prompt), np.float32), turn.behaviour_logp]
        versions.append(turn.versions)
    return structs.Trajectory(
        tokens=np.concatenate(tokens).astype(np.int32),
        loss_mask=np.concatenate(mask),
        behaviour_logp=np.concatenate(logp).astype(np.float32),
        role=structs.ROLE_ID[episode.role],
        group=group,
        episode_return=episode.episode_return,
        temperature=temperature,
        version=int(np.concatenate(versions).min()),
    )


def training_set(
    records: Sequence[structs.EnvironmentRecord],
    episodes: Sequence[structs.Episode],
    paid: Sequence[Payment],
    temperature: float,
    *,
    oldest: int,
) -> list[structs.Trajectory]:
    """What one update trains on: the agent's plain plays, then the designer's paid samples.

    Void plays and plays without a response are left out. Samples of a policy version
    before `oldest` get weight 0: too stale to correct for.
    """
    group = {record.id: index for index, record in enumerate(records)}
    sequences = [
        conversation_trajectory(episode, group[episode.environment_id], temperature)
        for episode in episodes
        if episode.arm == structs.PLAIN and episode.status != structs.VOID and episode.turns
    ]
    sequences += [payment.trajectory for payment in paid]
    return [s if s.version >= oldest else dataclasses.replace(s, weight=0.0) for s in sequences]
