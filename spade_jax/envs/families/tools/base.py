"""What a bundled family of tool use is: a family whose programs subclass `ToolEnvironment`.

Each family has one hidden rule, a step of the procedure that no message mentions: the
results of calls show it, and the hint states it. Its scripted player works a message off
by a plan, and slips now and then: it forgets that step, or takes a wrong value.
"""

from __future__ import annotations

import abc
import json
import random
import re
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from spade_jax.envs.families import base

# How often a player slips on one message.
SLIP_PLAIN = 0.25
SLIP_HINTED = 0.03
FORGETS, GUESSES = "forgets", "guesses"

VARIANT_WEIGHTS = {"execute": 3, "read-then-write": 2, "missing value": 1, "irrelevant request": 1}

# What users add that no tool can do, and nobody needs to.
_ASIDES = ("How are you?", "Nice day!", "Tell me a joke.", "What time is it?")

Call = tuple[str, str, dict[str, Any]]  # (reason, tool, arguments)
Plan = Generator[Call, str, None]  # yields calls and is sent their results


class ToolFamily(base.Family):
    """A family of tool-use programs.

    Attributes:
      skill: one of `spade_jax.designer.tool_prompts.DOMAINS`.
    """

    def parameters(self, rng: random.Random, split: str) -> dict[str, Any]:
        hard = split == base.HELD_OUT
        variant = rng.choices(list(VARIANT_WEIGHTS), list(VARIANT_WEIGHTS.values()))[0]
        # Four messages with something to read would outgrow the embedded policy's context.
        messages = 4 if hard and variant in ("execute", "irrelevant request") else 3
        aside = f" {rng.choice(_ASIDES)}" if variant == "irrelevant request" else ""
        shared = {"variant": variant, "messages": messages, "items": messages + 1, "aside": aside}
        return shared | self.constants(rng, hard)

    @abc.abstractmethod
    def constants(self, rng: random.Random, hard: bool) -> dict[str, Any]:
        """Draws what is the family's own; `hard` is the held-out range."""

    @abc.abstractmethod
    def plan(self, params: Mapping[str, Any], message: str, slip: str | None, rng: random.Random) -> Plan:
        """Works off one message of the user, with the slip or without."""

    def player(self, params, rng, hinted):
        return ToolPlayer(self, params, rng, hinted)


class ToolPlayer(base.Player):
    """Follows the family's plan for each message; replies with a short reason and a tag."""

    def __init__(self, family: ToolFamily, params: Mapping[str, Any], rng: random.Random, hinted: bool):
        self._family, self._params, self._rng = family, params, rng
        self._slip = SLIP_HINTED if hinted else SLIP_PLAIN
        self._plan: Plan | None = None

    def act(self, observation: str) -> str:
        try:
            if message := re.search(r"User: (.*)", observation):
                slip = self._rng.choice((FORGETS, GUESSES)) if self._rng.random() < self._slip else None
                self._plan = self._family.plan(self._params, message[1], slip, self._rng)
                reason, tool, arguments = next(self._plan)
            else:
                reason, tool, arguments = self._plan.send(observation.partition(": ")[2])
        except StopIteration:
            return "Done. <answer>done</answer>"
        call = json.dumps({"name": tool, "arguments": arguments})
        return f"{reason} <tool_call>{call}</tool_call>"


def items(words: Sequence[str]) -> str:
    """Six names out of the theme words, as a list in the program."""
    return json.dumps(list(words[2:8]))


def header(words: Sequence[str], noun: str, turns: int) -> str:
    """The first lines of every program, up to the body of the class."""
    return (
        "from toolkit import ToolEnvironment\n\n\n"
        f"class {base.class_name(words, noun)}(ToolEnvironment):\n    max_turns = {turns}\n"
    )


def guess(value: int, rng: random.Random) -> int:
    """A number next to the right one."""
    return value + rng.choice((-1, 1))
