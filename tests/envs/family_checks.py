"""What every bundled family must satisfy, shared by the tests of the families.

`python -m tests.envs.family_checks [name ...]` prints the measured table.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
import random
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spade_jax.envs import contract, families
from spade_jax.envs.families import base

WORDS = ("loop", "import", "string", "module", "object", "class", "method", "value", "slice", "closure")
SPLITS = (base.TRAIN, base.HELD_OUT)
MAX_CHARS = 1300
MAX_FIRST_OBSERVATION = 150
MAX_LATER_OBSERVATION = 90
MAX_HINT_WORDS = 25
MAX_TRIVIAL = 0.1
PLAIN_WINS = (0.15, 0.68)
HINTED_WINS = (0.8, 1.0)
MIN_GAP = 0.2
NUMBER_GARBAGE = ("\u00b2", "\u0663", "9" * 5000, "-1", "1.5")
GARBAGE = ("", " ", "{", "}}{{", "\\boxed{", "'", '"', "%s{0}", "\x00", "a" * 5000, *NUMBER_GARBAGE)


@dataclass(frozen=True)
class Report:
    """Measured on one family and split: lengths in characters, rates in [0, 1]."""

    name: str
    split: str
    chars: int
    first_observation: int
    later_observation: int
    plain: float
    hinted: float
    trivial: float


def load_family(name: str) -> base.Family:
    """The `FAMILY` of `spade_jax/envs/families/<name>.py`."""
    return importlib.import_module(f"spade_jax.envs.families.{name}").FAMILY


def all_names() -> list[str]:
    """The names of all families in the folder."""
    return sorted(m.name for m in pkgutil.iter_modules(families.__path__) if m.name != "base" and not m.ispkg)


def program(family: base.Family, split: str, draw: int) -> tuple[dict[str, Any], str]:
    """The constants and the source of a family's program number `draw`."""
    rng = random.Random(f"{family.name}/{split}/{draw}")
    params = family.parameters(rng, split)
    words = rng.sample(WORDS, len(WORDS))
    return params, family.source(params, words)


def build(source: str) -> type:
    """Executes the source and returns its only class."""
    namespace: dict[str, Any] = {"__name__": "program"}
    exec(compile(source, "program.py", "exec"), namespace)
    classes = [v for v in namespace.values() if isinstance(v, type) and v.__module__ == "program"]
    assert len(classes) == 1, f"one class expected, found {classes}"
    return classes[0]


def play(cls: type, seed: int, policy: Callable[[str], str], max_steps: int = 20) -> tuple[list[tuple], bool, float]:
    """Plays one episode; `policy` maps an observation to the action passed to `step`.

    Returns (transcript, success, last reward) and asserts the contract's types.
    """
    env = cls()
    observation, info = env.reset(seed=seed)
    assert isinstance(observation, str) and isinstance(info, dict)
    transcript: list[tuple] = [(observation, 0.0, False, False)]
    success, reward = False, 0.0
    for _ in range(max_steps):
        result = env.step(policy(observation))
        assert isinstance(result, tuple) and len(result) == 5
        observation, reward, terminated, truncated, info = result
        assert isinstance(observation, str) and observation and len(observation) <= contract.MAX_OBSERVATION_CHARS
        assert isinstance(reward, float) and math.isfinite(reward) and 0.0 <= reward <= 1.0
        assert isinstance(terminated, bool) and isinstance(truncated, bool) and isinstance(info["success"], bool)
        transcript.append((observation, reward, terminated, truncated))
        if terminated or truncated:
            success = contract.succeeded(reward, terminated, info)
            break
    else:
        raise AssertionError(f"no end after {max_steps} steps")
    env.close()
    return transcript, success, reward


def solution_of(cls: type, seed: int) -> list[str]:
    """What `solution()` says right after the reset."""
    env = cls()
    env.reset(seed=seed)
    commands = env.solution()
    assert isinstance(commands, list) and commands and all(isinstance(c, str) for c in commands)
    return commands


def replay(cls: type, seed: int, commands: list[str]) -> tuple[bool, list[tuple]]:
    """Feeds a list of commands; returns (success, transcript)."""
    env = cls()
    transcript: list[tuple] = [env.reset(seed=seed)]
    for command in commands:
        transcript.append(env.step(f"\\boxed{{{command}}}"))
        _, reward, terminated, truncated, info = transcript[-1]
        if terminated or truncated:
            return contract.succeeded(reward, terminated, info), transcript
    return False, transcript


def scripted(family: base.Family, params: Mapping[str, Any], cls: type, seed: int, hinted: bool) -> tuple[bool, str]:
    """One episode of the family's scripted player: (success, all its responses)."""
    player = family.player(params, random.Random(f"{seed}/{hinted}/{dict(params)}"), hinted)
    responses: list[str] = []

    def policy(observation: str) -> str:
        response = player.act(observation)
        match = re.fullmatch(r"([^\n{}\\]+) \\boxed\{([^{}\n]+)\}", response)
        assert match and len(match[1].split()) <= 12, f"not a short reason and a box: {response!r}"
        responses.append(response)
        return f"\\boxed{{{match[2]}}}"

    return play(cls, seed, policy)[1], "\n".join(responses)


def trivial_policies(first: str, rng: random.Random) -> dict[str, Callable[[str], str]]:
    """The policies that must fail. `first` is the first observation of the instance."""
    words = re.findall(r"\w+", first)
    symbols = [w for w in words if w.isdecimal() or len(w) == 1] or words
    one, symbol = rng.choice(words), rng.choice(symbols)
    policies: dict[str, Callable[[str], str]] = {
        "empty": lambda _: "",
        "done": lambda _: "done",
        "echo": lambda observation: observation,
        "repeat a word": lambda _: one,
        "repeat a symbol": lambda _: symbol,
        "random word": lambda _: rng.choice(words),
        "random symbol": lambda _: rng.choice(symbols),
        "random word of the latest": lambda observation: rng.choice(re.findall(r"\w+", observation) or words),
    }
    for fixed in ("0", "1", "5", "a", "left"):
        policies[f"repeat {fixed}"] = lambda _, fixed=fixed: fixed
    return policies


def trivial_rewards(cls: type, seed: int) -> dict[str, float]:
    """The final reward of each trivial policy on one instance."""
    first, _ = cls().reset(seed=seed)
    policies = trivial_policies(first, random.Random(seed))
    rewards = {}
    for name, policy in policies.items():
        rewards[name] = play(cls, seed, lambda observation, policy=policy: f"\\boxed{{{policy(observation)}}}")[2]
    return rewards


def check_program(family: base.Family, params: Mapping[str, Any], source: str) -> type:
    """Asserts what holds for every single program; returns its class."""
    assert len(source) <= MAX_CHARS, f"{len(source)} characters"
    cls = build(source)
    solutions = []
    hint = family.hint(params)
    assert 3 < len(hint.split()) <= MAX_HINT_WORDS and "\n" not in hint, hint
    for seed in range(8):
        commands = solution_of(cls, seed)
        solutions.append(tuple(commands))
        won, transcript = replay(cls, seed, commands)
        assert won, f"the solution {commands} does not win on seed {seed}"
        assert replay(cls, seed, commands)[1] == transcript, f"seed {seed} is not deterministic"
        assert not re.search(rf"\b{re.escape(' '.join(commands))}\b", hint), f"the hint holds {commands}: {hint}"
    assert len(set(solutions)) > 1
    assert len({cls().reset(seed=seed)[0] for seed in range(8)}) >= 4
    for garbage in GARBAGE:
        play(cls, 0, lambda _, garbage=garbage: garbage)
        play(cls, 1, lambda _, garbage=garbage: f"\\boxed{{{garbage}}}")
    env = cls()
    env.reset(seed=0)
    for _ in range(20):  # a step after the end must not crash either
        env.step("\\boxed{1}")
    return cls


def measure(family: base.Family, split: str, draws: int = 20, seeds: int = 10) -> Report:
    """Checks `draws` programs of the split and measures players and trivial policies."""
    chars = first = later = 0
    plain: list[bool] = []
    hinted: list[bool] = []
    trivial: dict[str, list[float]] = {}
    for draw in range(draws):
        params, source = program(family, split, draw)
        cls = check_program(family, params, source)
        chars = max(chars, len(source))
        for seed in range(draw * seeds, (draw + 1) * seeds):
            transcript, _, _ = play(cls, seed, lambda _: "\\boxed{1}")
            _, solved = replay(cls, seed, solution_of(cls, seed))
            first = max(first, len(transcript[0][0]))
            later = max(later, *(len(t[0]) for t in transcript[1:] + solved[1:]))
            plain.append(scripted(family, params, cls, seed, hinted=False)[0])
            hinted.append(scripted(family, params, cls, seed, hinted=True)[0])
            for name, reward in trivial_rewards(cls, seed).items():
                trivial.setdefault(name, []).append(reward)
    games = draws * seeds
    worst = max(sum(rewards) for rewards in trivial.values()) / games
    return Report(family.name, split, chars, first, later, sum(plain) / games, sum(hinted) / games, worst)


def check_family(family: base.Family, draws: int = 20) -> None:
    """Asserts everything for both splits."""
    check_reports(family, [measure(family, split, draws) for split in SPLITS], draws, MAX_LATER_OBSERVATION)


def check_reports(family: base.Family, reports: Sequence[Report], draws: int, max_later: int) -> None:
    """Asserts that the splits of `draws` programs each are disjoint, varied and within bounds."""
    drawn = [{program(family, split, draw)[1] for draw in range(draws)} for split in SPLITS]
    assert not drawn[0] & drawn[1], "the splits share a program"
    assert len(drawn[0]) > draws // 2, "too few distinct programs"
    for report in reports:
        assert report.trivial <= MAX_TRIVIAL, report
        assert PLAIN_WINS[0] <= report.plain <= PLAIN_WINS[1], report
        assert HINTED_WINS[0] <= report.hinted <= HINTED_WINS[1], report
        assert report.hinted - report.plain >= MIN_GAP, report
        assert report.first_observation <= MAX_FIRST_OBSERVATION, report
        assert report.later_observation <= max_later, report


def print_table(chosen: Iterable[base.Family], measure: Callable[[base.Family, str], Report]) -> None:
    """Prints what `measure` says of each family and split, or which assertion failed."""
    print(f"{'family':<20}{'split':<10}{'chars':>6}{'first':>6}{'later':>6}{'plain':>7}{'hinted':>7}{'trivial':>8}")
    for family in chosen:
        for split in SPLITS:
            try:
                r = measure(family, split)
            except AssertionError as error:
                print(f"{family.name:<20}{split:<10} fails: {error}")
                continue
            print(
                f"{r.name:<20}{r.split:<10}{r.chars:>6}{r.first_observation:>6}{r.later_observation:>6}"
                f"{r.plain:>7.2f}{r.hinted:>7.2f}{r.trivial:>8.3f}"
            )


def main() -> None:
    print_table(map(load_family, sys.argv[1:] or all_names()), measure)


if __name__ == "__main__":
    main()
