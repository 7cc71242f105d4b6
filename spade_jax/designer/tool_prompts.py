"""What the policy is asked about tool-use environments: to write one, to write its hint, to act in it.

The counterpart of `prompts.py`, in the same two styles, for programs on the base class of
`spade_jax/envs/tools.py`. Their designer is asked for a domain, in one of four variants.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from spade_jax.designer import prompts
from spade_jax.designer.parse import TOOL_IMPORTS
from spade_jax.designer.prompts import TINY, Message
from spade_jax.envs import tools
from spade_jax.envs.families.tools.base import VARIANT_WEIGHTS
from spade_jax.structs import EnvironmentRecord

DOMAINS = (
    "inventory",
    "banking",
    "calendar",
    "mail",
    "library",
    "home automation",
    "travel booking",
    "customer support",
    "file storage",
    "project tracking",
)

# What the full prompt says about a variant.
_VARIANTS = {
    "execute": "each message names every value that its calls need; the difficulty is to choose the right tools, in "
    "the right order, with the right arguments.",
    "read-then-write": "most messages need a value that one tool returns and that another tool then takes.",
    "missing value": "at least one message leaves a value out; the agent has to find it with a tool and must not "
    "invent it.",
    "irrelevant request": "at least one message also asks for something that no tool can do; the agent leaves that "
    "aside and carries out the rest.",
}


def draw_variant(rng: random.Random) -> str:
    """One of the four variants, by their weights 3:2:1:1."""
    return rng.choices(list(VARIANT_WEIGHTS), list(VARIANT_WEIGHTS.values()))[0]


def designer_messages(
    domain: str,
    document_text: str,
    exemplars: Sequence[EnvironmentRecord],
    negatives: Sequence[str],
    *,
    variant: str,
    style: str,
    rng: random.Random,
) -> list[Message]:
    """The request for one tool-use environment; arguments as of `prompts.designer_messages`.

    Raises:
      ValueError: an unknown style or variant.
    """
    prompts.check_style(style)
    if variant not in _VARIANTS:
        raise ValueError(f"variant {variant!r} is unknown; use one of {', '.join(_VARIANTS)}")
    if style == TINY:
        request = prompts.tiny_request(
            [f"Domain: {domain}", f"Variant: {variant}"], document_text, exemplars, negatives
        )
        return [("user", f"{request}\nWrite a tool environment.")]
    task = f"Write one tool-use environment in this domain: {domain}. Variant: {variant}, that is, {_VARIANTS[variant]}"
    return [("system", _CONTRACT), ("user", prompts.full_request(task, document_text, exemplars, negatives, rng))]


def hint_messages(source: str, *, style: str, leaked: str = "") -> list[Message]:
    """The request for the privileged hint on one program: a plan without values; `leaked` as of `prompts`."""
    prompts.check_style(style)
    program = prompts.fenced(prompts.strip_control(source))
    if style == TINY:
        return [("user", f"Write a plan.\n{program}")]
    return [
        (
            "user",
            "Below is the source of a tool-use environment. An agent will work in it without seeing the source. Write "
            "a plan of fewer than 100 words for that agent: which tools to call in which order for each kind of "
            "request, and which step is easily overlooked. The plan has to hold for every seed, so name tools and "
            f"arguments but never a value.\n\n{prompts.refusal(leaked)}{program}\n\nAnswer with the plan alone.",
        )
    ]


def agent_prompt(observation: str, hint: str | None = None, *, style: str = TINY) -> str:
    """The agent's first message: the task, the plan in the hinted arm, the tools and the user's first message."""
    prompts.check_style(style)
    observation = prompts.agent_turn(observation)
    hint = prompts.strip_control(hint).strip() if hint else ""
    if style == TINY:
        return "You are using tools.\n" + (f"Hint: {hint}\n" if hint else "") + observation
    return (
        "You carry out a user's requests with the tools listed below. Call one tool in each reply: "
        '<tool_call>{"name": "tool", "arguments": {"argument": "value"}}</tool_call>. When the latest request is '
        "carried out, and not before, reply <answer>done</answer>; the next request follows. Every request counts.\n"
        + (f"Hint: {hint}\n" if hint else "")
        + observation
    )


_CONTRACT = """You design tool-use environments that teach a language model to act for a user.
An environment is one Python program on a base class that is provided: from {module} import ToolEnvironment.

Interface. The program defines exactly one subclass of ToolEnvironment, and the base class does the rest: it
parses the agent's calls, checks their arguments, reveals the messages and keeps the score. You write:
- setup(self, rng): draws the backend's state from rng, a random.Random, stores it on self, and declares the
  user's messages in order with self.ask.
- one method per tool, {min_tools} to {max_tools} of them. Every public method is a tool. Its parameters carry an
  annotation (str, int, float, bool, list[...], dict or Literal[...]), which together with a one-line docstring
  is its function-calling schema. It changes the state or returns a str or JSON data. A KeyError is answered
  as an unknown name; no other exception may leave it, whatever the arguments. Helpers begin with an underscore.
- max_turns: optional class attribute, the agent's replies per episode ({max_turns} unless you say otherwise).
Do not write __init__, reset, step, solution or close.

Messages. self.ask(text, criterion, *calls), {min_messages} to {max_messages} times:
- text is one request, as a user would put it. It is shown only when the one before has been finished.
- criterion is a function without arguments: whether the state satisfies this request. It is false before
  anything was done, for every seed, becomes true by this message's calls and not before, and never raises.
- calls are the reference, one list each: ["tool", value, ...] with the values in the order of the parameters.
The score is 1 when every message is satisfied as the agent finishes it, else 0.

Quality.
- Every value that the reference uses stands in a message so far or in the result of an earlier call.
- Results tell the agent what happened; a step that is easily overlooked shows in them.
- Finishing without acting, or calling tools at random, must not satisfy any message.
- Bind loop variables in a lambda (lambda x=x: ...).
- Different seeds give different states and messages. The same seed with the same calls always gives the same
  replies: no clock, no set order, no object ids, no randomness but rng.

Limits. Standard library only, and of it only: {imports}. No files, no network, no threads, no eval or exec, no
double-underscore attributes. Every call finishes within a second.""".format(
    module=tools.MODULE,
    min_tools=tools.MIN_TOOLS,
    max_tools=tools.MAX_TOOLS,
    min_messages=tools.MIN_MESSAGES,
    max_messages=tools.MAX_MESSAGES,
    max_turns=tools.ToolEnvironment.max_turns,
    imports=", ".join(sorted(TOOL_IMPORTS - {"__future__", tools.MODULE})),
)
