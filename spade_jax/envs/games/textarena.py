"""Two-player games of TextArena as games of ours (extra `[textarena]`).

Its games draw from the *global* generators of `random` and NumPy, which `reset(seed)` reseeds, and its wrappers keep an
old play's history after a reset. Both are contained: every play is made anew, and around every call into it the global
generators are exchanged for the play's own, so plays may interleave and nobody else's draws move.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np

from spade_jax.envs.games.base import MAX_ACTION_CHARS, Game, winner_return

PREFIX = "textarena:"  # of these games' names, e.g. "textarena:TicTacToe-v0"


def _module() -> Any:
    try:
        import textarena  # heavy, and optional
    except ImportError as error:
        raise ValueError(f"games named {PREFIX}... need the package textarena; install spade_jax[textarena]") from error
    return textarena


class TextArenaGame(Game):
    """A play of a TextArena environment.

    TextArena itself says whether a command is a legal action, so any text that may be one is passed on, and a seat
    whose command is none may be asked again, or loses, as the environment has it. The command, and nothing of the
    reasoning before it, may appear in what the other seat is shown.

    Args:
      seed: of the environment.
      environment: TextArena's id, e.g. "TicTacToe-v0".
    """

    def __init__(self, seed: int, environment: str):
        super().__init__(seed)
        self.name = PREFIX + environment
        self._states: tuple[Any, Any] | None = None
        textarena = _module()
        try:
            with self._own_generators():
                random.seed(seed)
                np.random.seed(seed % 2**32)
                self._env = textarena.make(environment)
                self._env.reset(num_players=2, seed=seed)
                self.player, self._observation = self._env.get_observation()
        except ValueError as error:
            raise ValueError(f"selfplay.games: TextArena has no {environment!r} for two players ({error})") from error

    @contextlib.contextmanager
    def _own_generators(self) -> Iterator[None]:
        """The global generators are this play's within the block, and as they were after it."""
        before = random.getstate(), np.random.get_state()
        if self._states is not None:
            random.setstate(self._states[0])
            np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(before[0])
            np.random.set_state(before[1])

    def rules(self) -> str:
        return ""  # the environment's first observation says them

    def observe(self, player: int) -> str:
        return str(self._observation) if player == self.player else ""

    def legal_actions(self) -> tuple[str, ...]:
        return ()  # the environment does not list them

    def parse(self, command: str) -> str | None:
        text = command.strip()
        if self.player is None or not text or len(text) > MAX_ACTION_CHARS or not text.isprintable():
            return None
        return text if text.startswith("[") else f"[{text}]"

    def step(self, action: str) -> None:
        if self.player is None:
            raise ValueError(f"{self.name}: the play is over")
        self._play(action)

    def _play(self, action: str) -> None:
        with self._own_generators():
            done, _ = self._env.step(action)
            if not done:
                self.player, self._observation = self._env.get_observation()
                return
            rewards, _ = self._env.close()
        self._end(winner_return(rewards.get(0, 0) - rewards.get(1, 0)))
