"""The opponents of self-play: earlier policies on a second sampler, scripted players, an endpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from spade_jax import compose
from spade_jax.evals import games as evals
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.policy import Decoder, load_params, merge_adapters, save_params
from spade_jax.rollout.endpoint import EndpointPlayer
from spade_jax.rollout.players import Player, PolicyPlayer
from spade_jax.runtime import hosts, seeds
from spade_jax.runtime.errors import RunError
from spade_jax.sampler import Engine
from spade_jax.session import Session


class Opponents:
    """Who the policy plays against, beside itself.

    Earlier policies are kept in the workdir's `snapshots/`, one every `selfplay.pool.every_steps` steps from the
    initial policy on, so a resumed run finds those that it had. A second sampler plays them; it and the endpoint are
    made when first needed.
    """

    def __init__(
        self, stack: contextlib.ExitStack, config: ConfigDict, workdir: str, session: Session, requests_before: int
    ):
        self._stack, self._config, self._session = stack, config, session
        self._folder = pathlib.Path(workdir) / "snapshots"
        self._every = config.selfplay.pool.every_steps
        self._engine: Engine | None = None
        self._endpoint: EndpointPlayer | None = None
        self._requests_before = requests_before
        self._pooled = config.selfplay.opponent == "pool"
        self._many = self._pooled or (config.evaluation.every_steps > 0 and config.evaluation.rated_against > 0)
        self._first = "initial" in config.evaluation.opponents or config.selfplay.opponent == "snapshot"

    @property
    def requests(self) -> int:
        """Requests that the run has sent to the endpoint, all processes together."""
        if self._endpoint is None:
            return self._requests_before
        return self._requests_before + sum(hosts.gather(self._endpoint.requests - self._requests_before))

    def keep(self, step: int) -> None:
        """Writes the present policy down, where its turn has come."""
        if (self._many and step % self._every == 0) or (self._first and step == 0):
            params = partitioning.fetch(merge_adapters(self._session.state.params, self._session.model.config))
            hosts.from_first(lambda: self._save(step, params))

    def _save(self, step: int, params: Any) -> None:
        self._folder.mkdir(exist_ok=True)
        save_params(self._path(step), params, self._session.model.config.merged)

    def _path(self, step: int) -> pathlib.Path:
        return self._folder / f"step_{step:06d}.npz"

    def draw(self, step: int, scores: Mapping[str, Sequence[float]]) -> str:
        """The name of this step's opponent: "random", "endpoint", or a snapshot's step.

        Args:
          scores: of each snapshot, what the policy has scored against it, and in how many matches.
        """
        if not self._pooled:
            return "0" if self._config.selfplay.opponent == "snapshot" else self._config.selfplay.opponent
        pool = self._config.selfplay.pool
        steps = list(range(0, step + 1, self._every))[-pool.size :]
        weights = {
            "uniform": [1.0] * len(steps),
            "recent": list(range(1, len(steps) + 1)),
            "hard": [hardness(*scores.get(str(s), (0.0, 0))) for s in steps],
        }[pool.sampling]
        return str(seeds.host_rng(self._config.run.seed, "pool", step).choices(steps, weights)[0])

    def rated(self, step: int) -> list[int]:
        """The snapshots that the policy of this step meets to be rated: evenly from the first to the last before it."""
        steps = range(0, step, self._every)
        count = min(len(steps), self._config.evaluation.rated_against)
        return [steps[round(i)] for i in np.linspace(0, len(steps) - 1, count)]

    def player(self, name: str, temperature: float) -> Player:
        """The opponent of that name; of snapshots at most one is there at a time."""
        if name == "endpoint":
            if self._endpoint is None:
                settings = compose.endpoint_settings(self._config)
                left = (settings.max_requests - self._requests_before) // jax.process_count()
                settings = dataclasses.replace(settings, max_requests=self._requests_before + left)
                self._endpoint = EndpointPlayer(settings, requests_before=self._requests_before)
                self._stack.callback(self._endpoint.close)
            return self._endpoint
        scripted = evals.scripted_players()
        return scripted[name] if name in scripted else self._snapshot(int(name), temperature)

    def _snapshot(self, step: int, temperature: float) -> PolicyPlayer:
        session, path = self._session, self._path(step)
        try:
            params, _ = load_params(path)
        except OSError as error:
            raise RunError(
                f"{path} cannot be read ({error.strerror}); restore it, or start in another workdir"
            ) from error
        mesh = session.sampler_mesh
        shardings = state_lib.param_shardings(Decoder(session.model.config.merged), mesh)
        params = partitioning.global_copies(mesh, params, shardings)
        if self._engine is None:
            self._engine = compose.engine(
                self._config, session.model, params, session.template, mesh, launching=session.launching
            )
        self._engine.set_params(params, version=step)
        return PolicyPlayer(self._engine, session.template, compose.policy_settings(self._config, temperature))


def hardness(score: float, matches: int) -> float:
    """(1 - win rate)^2 with one drawn match as a prior: how likely a snapshot is drawn under pool.sampling=hard.

    Prioritised fictitious self-play, Vinyals et al. 2019 (AlphaStar).
    """
    return (1.0 - (score + 0.5) / (matches + 1)) ** 2
