"""Gymnasium both ways: our programs as Gymnasium environments, and theirs as our programs.

`ProgramEnv` runs a program of the contract (`spade_jax/envs/contract.py`) behind
`gymnasium.Env`. `GymnasiumProgram` keeps the contract on top of any Gymnasium
environment whose actions are Text or Discrete; `TrustedPool` serves such programs, in
this process, where episodes expect the sandbox.

Everything here runs in the caller's process: for code that you trust, never for what a
designer wrote.

Rewards: ours is the current score in [0, 1], theirs adds up over the episode. Both
directions keep the final score: a step of `ProgramEnv` pays the change of the score, and
`GymnasiumProgram` maps the sum so far from `return_range` to [0, 1].
"""

from __future__ import annotations

import collections
import re
import string
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from spade_jax.envs.contract import MAX_OBSERVATION_CHARS, METHODS, environment_id
from spade_jax.sandbox import Reply
from spade_jax.structs import BOX, EnvironmentRecord, boxed

# What both Text spaces may hold; programs may print anything, so the rest shows as "?".
CHARSET = string.ascii_letters + string.digits + string.punctuation + " \n\t"
MAX_ACTION_CHARS = 200
_SHOWN_CHARS = 40
_HIGHLIGHT = re.compile(r"\x1b\[[\d;]+m(.*?)\x1b\[0m", re.DOTALL)


class ProgramEnv(gymnasium.Env[str, str]):
    """A program of the contract as a Gymnasium environment.

    The action is the command itself, without a box. `info` is the program's own.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 1}  # the checker asks for a rate; turns have none

    def __init__(self, program_class: Callable[[], Any], render_mode: str | None = None):
        """
        Args:
          program_class: called without arguments at every reset, so that no state
            survives from one episode to the next.
          render_mode: None, or "ansi": `render()` returns the latest observation.

        Raises:
          ValueError: another render mode.
        """
        if render_mode not in (None, "ansi"):
            raise ValueError(f"render_mode is {render_mode!r}; give None or 'ansi'.")
        self.render_mode = render_mode
        self.observation_space = spaces.Text(MAX_OBSERVATION_CHARS, min_length=0, charset=CHARSET)
        self.action_space = spaces.Text(MAX_ACTION_CHARS, min_length=0, charset=CHARSET)
        self._program_class = program_class
        self._program: Any = None
        self._text = ""
        self._score = 0.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.close()
        self._program = self._program_class()
        self._score = 0.0
        # Without a seed the next instance follows from the last one, as Gymnasium asks.
        text, info = self._program.reset(seed=int(self.np_random.integers(2**31)) if seed is None else seed)
        self._text = _within_charset(text)
        return self._text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        text, score, terminated, truncated, info = self._program.step(boxed(action))
        reward, self._score = score - self._score, score
        self._text = _within_charset(text)
        return self._text, reward, terminated, truncated, info

    def render(self) -> str | None:
        return self._text if self.render_mode == "ansi" else None

    def close(self) -> None:
        if hasattr(self._program, "close"):
            self._program.close()
        self._program = None


class GymnasiumProgram:
    """A Gymnasium environment as a program of the contract.

    An answer outside the action space costs a turn, leaves the environment alone and is
    told what would be accepted. Success is the environment's `info["success"]` or
    `info["is_success"]`; without either, the contract's rule decides. There is no
    `solution`, so a gate would call such a program unverified.
    """

    def __init__(
        self,
        make: Callable[[], gymnasium.Env],
        max_turns: int = 25,
        return_range: tuple[float, float] = (0.0, 1.0),
        actions: Sequence[str] = (),
        instructions: str = "",
    ):
        """
        Args:
          make: builds the environment. With render mode "ansi" its rendering is shown,
            else its observation.
          max_turns: answers until the episode is truncated.
          return_range: sums of rewards that score 0 and 1.
          actions: names of a Discrete space's actions, in order; without them the player
            answers with the numbers.
          instructions: put before the first observation, e.g. the rules.

        Raises:
          ValueError: an action space that is neither Text nor Discrete, a wrong number of
            action names, or an empty return range.
        """
        low, high = return_range
        if not low < high:
            raise ValueError(f"return_range is {return_range}; give a lower and a higher number.")
        self.max_turns = max_turns
        self._low, self._high = low, high
        self._instructions = instructions
        self._env = make()
        space = self._env.action_space
        if isinstance(space, spaces.Discrete):
            numbers = range(int(space.start), int(space.start + space.n))
            if actions and len(actions) != len(numbers):
                raise ValueError(f"actions holds {len(actions)} names; the environment has {len(numbers)} actions.")
            self._choices = dict(zip(actions or map(str, numbers), numbers, strict=True))
            self._accepted = f"Answer with one of: {', '.join(self._choices)}."
        elif isinstance(space, spaces.Text):
            if actions:
                raise ValueError(f"actions holds {len(actions)} names; a Text action space takes none.")
            self._choices = {}
            self._accepted = f"Answer with {space.min_length} to {space.max_length} characters of {space.characters!r}."
        else:
            raise ValueError(f"the action space is {space}; wrap the environment so that it is Text or Discrete.")
        self._turn = 0
        self._sum = 0.0

    def reset(self, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self._turn, self._sum = 0, 0.0
        observation, _ = self._env.reset(seed=seed)
        # A Text environment says by itself what it understands; numbers mean nothing unexplained.
        parts = (self._instructions, self._shown(observation), self._accepted if self._choices else "")
        return "\n".join(part for part in parts if part)[:MAX_OBSERVATION_CHARS], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self._turn += 1
        out_of_turns = self._turn >= self.max_turns
        command = _command(action)
        move = self._choices.get(command) if self._choices else command
        if move is None or not self._env.action_space.contains(move):
            shown = command if len(command) <= _SHOWN_CHARS else f"{command[:_SHOWN_CHARS]}..."
            reply = f"{shown!r} is not an action. {self._accepted}"
            return reply[:MAX_OBSERVATION_CHARS], self._score(), False, out_of_turns, {}
        observation, reward, terminated, truncated, info = self._env.step(move)
        self._sum += float(reward)
        won = info.get("success", info.get("is_success"))
        text = self._shown(observation)[:MAX_OBSERVATION_CHARS]
        truncated = bool(truncated) or (out_of_turns and not terminated)
        return text, self._score(), bool(terminated), truncated, {} if won is None else {"success": bool(won)}

    def close(self) -> None:
        self._env.close()

    def _score(self) -> float:
        return min(max((self._sum - self._low) / (self._high - self._low), 0.0), 1.0)

    def _shown(self, observation: Any) -> str:
        if self._env.render_mode == "ansi":
            # Terminal colours mark things, e.g. where the player stands.
            return _HIGHLIGHT.sub(r"[\1]", str(self._env.render())).strip()
        return describe(observation)


class TrustedPool:
    """Trusted programs behind the part of `spade_jax.sandbox.Pool` that episodes use.

    A record's `class_name` names the program (see `trusted_record`). Requests run at once,
    in this process, without limits; what a program raises becomes the reply, as there.
    """

    def __init__(self, programs: Mapping[str, Callable[[], Any]]):
        """`programs` maps a class name to what builds the program without arguments."""
        self._programs = dict(programs)
        self._open: dict[int, str] = {}
        self._live: dict[int, Any] = {}
        self._replies: collections.deque[Reply] = collections.deque()
        self._tickets = 0

    def open(self, source: str, class_name: str, *, hash_seed: int = 0) -> int:
        """The id of a new environment; `source` and `hash_seed` have no use here.

        Raises:
          ValueError: no program of that name.
        """
        if class_name not in self._programs:
            raise ValueError(f"class_name is {class_name!r}; known programs: {', '.join(sorted(self._programs))}.")
        self._tickets += 1
        self._open[self._tickets] = class_name
        return self._tickets

    def request(self, env: int, method: str, *args: Any, seconds: float | None = None) -> int:
        """Runs the method now and keeps the reply for `poll`; returns its ticket."""
        self._tickets += 1
        began = time.monotonic()
        try:
            value, error = self._call(env, method, args), ""
        except Exception as raised:  # a program may raise anything; an episode must survive it
            value, error = None, f"{type(raised).__name__}: {raised}".splitlines()[0]
        kind = "exception" if error else "ok"
        spent = time.monotonic() - began
        self._replies.append(Reply(self._tickets, env, not error, value, error, kind, spent))
        return self._tickets

    def poll(self, timeout: float | None) -> list[Reply]:
        """The replies since the last call; never waits."""
        replies = list(self._replies)
        self._replies.clear()
        return replies

    def close(self, env: int) -> None:
        """Closes the environment and drops its replies; idempotent."""
        self._open.pop(env, None)
        self._replies = collections.deque(reply for reply in self._replies if reply.env != env)
        program = self._live.pop(env, None)
        if hasattr(program, "close"):
            program.close()

    def _call(self, env: int, method: str, args: tuple[Any, ...]) -> Any:
        if method == "construct":
            self._live[env] = self._programs[self._open[env]]()
            return None
        if method not in METHODS:
            raise ValueError(f"method is {method!r}; the contract has {', '.join(METHODS)}.")
        return getattr(self._live[env], method)(*args)


def trusted_record(class_name: str, skill: str = "") -> EnvironmentRecord:
    """The record of a program that `TrustedPool` serves under `class_name`; it has no source."""
    return EnvironmentRecord(environment_id(f"trusted:{class_name}"), "", class_name, skill=skill)


def describe(observation: Any) -> str:
    """Text for an observation of any Gymnasium space, e.g. `{"at": [1 2]}` -> "at: [1 2]"."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Mapping):
        return "; ".join(f"{key}: {describe(value)}" for key, value in observation.items())
    if isinstance(observation, tuple | list):
        return ", ".join(describe(value) for value in observation)
    if isinstance(observation, np.ndarray) and observation.ndim:
        return np.array2string(observation, precision=3, suppress_small=True)
    return f"{observation:.4g}" if isinstance(observation, float | np.floating) else str(observation)


def _command(action: str) -> str:
    """The command of an action as the harness passes it: boxed, or a bare response."""
    if action.startswith(BOX) and action.endswith("}"):
        return action[len(BOX) : -1].strip()
    return action.strip()


def _within_charset(text: str) -> str:
    """The text with characters outside CHARSET as "?", cut to the contract's length."""
    return "".join(c if c in CHARSET else "?" for c in text[:MAX_OBSERVATION_CHARS])
