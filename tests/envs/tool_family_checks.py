"""What every bundled family of tool use must satisfy.

`python -m tests.envs.tool_family_checks [name ...]` prints the measured table.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from spade_jax.designer import parse
from spade_jax.envs.families import tools as families
from spade_jax.envs.families.tools.base import ToolFamily
from spade_jax.tokens import parsing
from tests.envs.family_checks import MAX_HINT_WORDS, SPLITS, Report, check_reports, print_table, program

MAX_CHARS = 1200
MAX_LATER_OBSERVATION = 60
GARBAGE = (
    "",
    "\x00",
    "<tool_call>",
    "<tool_call></tool_call>",
    "<tool_call>[]</tool_call>",
    '<tool_call>{"name": "read"}</tool_call>',
    "<answer></answer>",
    "a" * 5000,
)
# Values of the right type that nothing is called.
ODD = {"string": ("", "nobody", "\u00b2", "x" * 900), "integer": (-1, 0, 2**53)}


def build(source: str) -> type:
    """The class of a program that passes the static checks."""
    return families.load(source, parse.parse_program(source, "tool").class_name)


def play(cls: type, seed: int, policy: Callable[[str], str]) -> tuple[list[tuple], float]:
    """Plays one episode; `policy` maps an observation to a whole response. Returns (transcript, last reward)."""
    environment = cls()
    transcript = [environment.reset(seed)]
    for _ in range(environment.max_turns):
        observation = transcript[-1][0]
        transcript.append(environment.step(parsing.action_of(policy(observation), "tool")))
        _, reward, terminated, truncated, info = transcript[-1]
        assert reward in (0.0, 1.0) and info["success"] == (reward == 1.0) and not truncated
        if terminated:
            return transcript, reward
    raise AssertionError("no end")


def replay(cls: type, seed: int) -> tuple[list[tuple], float]:
    """The transcript of the reference solution."""
    environment = cls()
    environment.reset(seed)
    commands = iter(environment.solution())
    return play(cls, seed, lambda _: parsing.action_for(next(commands), "tool"))


def random_call(environment: Any, text: str, rng: random.Random) -> str:
    """A random tool with random words of the text for arguments, or the end of the message."""
    schemas = environment.reset(0)[1]["tools"]
    words, numbers = re.findall(r"[A-Za-z]\w*", text), [int(n) for n in re.findall(r"\d+", text)] or [1]
    schema = rng.choice([*schemas, None])
    if schema is None:
        return "<answer>done</answer>"
    arguments = {
        name: rng.choice(words if kind["type"] == "string" else numbers)
        for name, kind in schema["parameters"]["properties"].items()
    }
    return parsing.action_for(json.dumps({"name": schema["name"], "arguments": arguments}), "tool")


def trivial_rewards(cls: type, seed: int) -> dict[str, float]:
    """The final reward of each policy that understands nothing."""
    rng = random.Random(seed)
    probe, first = cls(), cls().reset(seed)[0]
    fixed = random_call(probe, first, rng)
    policies: dict[str, Callable[[str], str]] = {
        "empty": lambda _: "",
        "done": lambda _: "<answer>done</answer>",
        "echo": lambda observation: observation,
        "one call": lambda _: fixed,
        "random call": lambda observation: random_call(probe, f"{first} {observation}", rng),
    }
    return {name: play(cls, seed, policy)[1] for name, policy in policies.items()}


def check_program(family: ToolFamily, params: Mapping[str, Any], source: str) -> type:
    """Asserts what holds for every single program; returns its class."""
    assert len(source) <= MAX_CHARS, f"{len(source)} characters"
    cls = build(source)
    hint = family.hint(params)
    assert 3 < len(hint.split()) <= MAX_HINT_WORDS and "\n" not in hint, hint
    solutions = set()
    for seed in range(8):
        transcript, reward = replay(cls, seed)
        assert reward == 1.0, f"the reference loses on seed {seed}"
        assert replay(cls, seed) == (transcript, reward), f"seed {seed} is not deterministic"
        infos = [step[-1] for step in transcript]
        assert not any(infos[0]["criteria"]) and all(infos[-1]["criteria"])
        assert not any(info["error"] for info in infos[1:])
        for info in infos:  # later messages are open until their turn
            assert not any(info["criteria"][info["message"] + 1 :]), info
        environment = cls()
        environment.reset(seed)
        commands = environment.solution()
        solutions.add(tuple(commands))
        values = [v for c in commands if c != "done" for v in json.loads(c)["arguments"].values()]
        assert not {str(value) for value in values} & set(re.findall(r"\w+", hint)), f"the hint holds a value: {hint}"
    assert len(solutions) > 1
    assert len({cls().reset(seed)[0] for seed in range(8)}) >= 4
    for garbage in GARBAGE:
        play(cls, 0, lambda _, garbage=garbage: garbage)
    schemas = cls().reset(0)[1]["tools"]
    for schema in schemas:
        for odd in range(4):
            environment = cls()
            environment.reset(0)
            kinds = schema["parameters"]["properties"]
            values = {name: ODD[kind["type"]][odd % len(ODD[kind["type"]])] for name, kind in kinds.items()}
            environment.step(parsing.action_for(json.dumps({"name": schema["name"], "arguments": values}), "tool"))
    return cls


def measure(family: ToolFamily, split: str, draws: int = 20, seeds: int = 10) -> Report:
    """Checks `draws` programs of the split and measures players and trivial policies."""
    chars = first = later = 0
    plain: list[float] = []
    hinted: list[float] = []
    trivial: dict[str, list[float]] = {}
    for draw in range(draws):
        params, source = program(family, split, draw)
        cls = check_program(family, params, source)
        chars = max(chars, len(source))
        for seed in range(draw * seeds, (draw + 1) * seeds):
            solved, _ = replay(cls, seed)
            first = max(first, len(solved[0][0]))
            later = max(later, *(len(step[0]) for step in solved[1:]))
            for arm, wins in (("plain", plain), ("hinted", hinted)):
                player = family.player(params, random.Random(f"{family.name}/{seed}/{arm}"), arm == "hinted")
                wins.append(play(cls, seed, player.act)[1])
            for name, reward in trivial_rewards(cls, seed).items():
                trivial.setdefault(name, []).append(reward)
    games = draws * seeds
    worst = max(sum(rewards) for rewards in trivial.values()) / games
    return Report(family.name, split, chars, first, later, sum(plain) / games, sum(hinted) / games, worst)


def check_family(family: ToolFamily, draws: int = 20) -> None:
    """Asserts everything for both splits."""
    check_reports(family, [measure(family, split, draws) for split in SPLITS], draws, MAX_LATER_OBSERVATION)


def main() -> None:
    chosen = [family for family in families.all_families() if not sys.argv[1:] or family.name in sys.argv[1:]]
    print_table(chosen, measure)


if __name__ == "__main__":
    main()
