"""The gate: what a program must show before anyone plays it.

Checks run from cheap to dear and stop at the first failure: parse, contract,
determinism, solvable, nontrivial, varied. Each leaves a verdict with evidence.

`check` is a coroutine: it yields `GateCall`s and is sent `Reply`s, so that one
single-threaded driver (`run_gates`) keeps many gates busy on one sandbox pool.
Every episode starts with "construct", as a rollout's does, so no state survives
from one episode to the next. Programs are untrusted: whatever they do, the gate
ends with a report.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import random
import re
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from spade_jax.designer import parse
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.envs.contract import MAX_OBSERVATION_CHARS, succeeded
from spade_jax.structs import CheckVerdict, GateReport

CHECKS = ("parse", "contract", "determinism", "solvable", "nontrivial", "varied")
EVIDENCE_CHARS = 300
MAX_CONCURRENT = 32  # gates; three children each at most

# Commands that no program expects. Some pass `str.isdigit` and break `int`, some are
# longer than `int` accepts, some break naive unboxing; a responder may box nothing at all.
GARBAGE = (
    "\\boxed{}",
    "",
    "\\boxed{\u00b2}",
    "\\boxed{\u0661\u0662}",
    "\\boxed{-1}",
    "\\boxed{1e999}",
    "\\boxed{nan}",
    "\\boxed{}{}",
    "\\boxed{",
    "}}{{",
    "\\boxed{0 0 0 0}",
    "\\boxed{,}",
    "\\boxed{a:b=c}",
    "\\boxed{(1, 2)}",
    "\\boxed{None}",
    "\\boxed{\U0001f600 \n\t\\}",
    "I am not sure what to do.",
    "\\boxed{" + "9" * 5000 + "}",
    "\\boxed{" + "go " * 2000 + "}",
)


@dataclasses.dataclass(frozen=True)
class GateConfig:
    """Sizes of the checks.

    Attributes:
      checks: which of CHECKS run; "parse" always does.
      max_turns: the agent's turn budget; a longer solution counts as none.
      seeds: seeds for `nontrivial` and `varied`.
      solvable_seeds: seeds on which the solution must win.
      determinism_seeds: seeds that are replayed in two processes.
      trivial_seeds: seeds after which a scoring mindless policy is judged.
      trivial_score: a mindless policy must not average above this.
      distinct_observations: least number of distinct first observations.
    """

    checks: tuple[str, ...] = CHECKS
    max_turns: int = 25
    seeds: int = 8
    solvable_seeds: int = 5
    determinism_seeds: int = 2
    trivial_seeds: int = 24
    trivial_score: float = 0.1
    distinct_observations: int = 4


DEFAULT_CONFIG = GateConfig()


@dataclasses.dataclass(frozen=True)
class GateCall:
    """One request to one child of a gate; the driver opens a child at its first use.

    Attributes:
      child: which of this gate's children, a small integer.
      hash_seed: PYTHONHASHSEED of the child, 0 or 1.
      method: "construct", "reset", "step" or "solution".
      args: its arguments.
    """

    child: int
    hash_seed: int
    method: str
    args: tuple[Any, ...] = ()


class ReplyLike(Protocol):
    """What the gate reads of `spade_jax.sandbox`'s Reply."""

    ok: bool
    value: Any
    error: str
    kind: str
    seconds: float


class PoolLike(Protocol):
    """What the gate needs of `spade_jax.sandbox.Pool`."""

    def open(self, source: str, class_name: str, *, hash_seed: int = 0) -> int: ...

    def request(self, env: int, method: str, *args: Any, seconds: float | None = None) -> int: ...

    def poll(self, timeout: float | None) -> list[Any]: ...

    def close(self, env: int) -> None: ...


Gate = Generator[GateCall, ReplyLike, GateReport]


def check(source: str | None, config: GateConfig = DEFAULT_CONFIG) -> Gate:
    """Checks one program; `source` is None where the response held no program."""
    try:
        if source is None:
            raise parse.ProgramError("no_code", "the response holds no fenced program")
        program = parse.parse_program(source)
    except parse.ProgramError as error:
        return GateReport((CheckVerdict("parse", False, _one_line(error)),), error.failure, False)
    verdicts = [CheckVerdict("parse", True, f"class {program.class_name}")]
    checks = {
        "contract": _check_contract,
        "determinism": _check_determinism,
        "solvable": _check_solvable,
        "nontrivial": _check_nontrivial,
        "varied": _check_varied,
    }
    for name, run in checks.items():
        if name not in config.checks:
            continue
        session = _Session(program, config)
        try:
            passed, evidence = yield from run(session)
        except _Rejected as error:
            passed = None if error.failure == INFRASTRUCTURE else False
            verdicts.append(CheckVerdict(name, passed, _one_line(error), session.seconds))
            return GateReport(tuple(verdicts), error.failure, False)
        verdicts.append(CheckVerdict(name, passed, _one_line(evidence), session.seconds))
    return GateReport(tuple(verdicts), None, program.has_solution and "solvable" in config.checks)


def run_gates(pool: PoolLike, sources: Sequence[str | None], config: GateConfig = DEFAULT_CONFIG) -> list[GateReport]:
    """Runs one gate per source, `MAX_CONCURRENT` at a time, and returns their reports in order.

    The pool must be otherwise idle: replies to requests made elsewhere are dropped.
    """
    reports: list[GateReport | None] = [None] * len(sources)
    gates = [check(source, config) for source in sources]
    unstarted = iter(range(len(sources)))
    children: dict[tuple[int, int], int] = {}  # (gate, child) -> env id
    waiting: dict[int, int] = {}  # ticket -> gate

    def advance(gate: int | None, reply: ReplyLike | None) -> None:
        """Sends a reply to a gate; where that ends it, starts the next ones until one has to wait."""
        while gate is not None:
            try:
                call = gates[gate].send(reply)
            except StopIteration as stop:
                reports[gate] = stop.value
                for key in [key for key in children if key[0] == gate]:
                    pool.close(children.pop(key))
                gate, reply = next(unstarted, None), None
                continue
            key = (gate, call.child)
            if key not in children:
                program = parse.parse_program(sources[gate])
                children[key] = pool.open(program.source, program.class_name, hash_seed=call.hash_seed)
            waiting[pool.request(children[key], call.method, *call.args)] = gate
            return

    try:
        for gate in itertools.islice(unstarted, MAX_CONCURRENT):
            advance(gate, None)
        while waiting:
            for reply in pool.poll(None):
                if reply.ticket in waiting:
                    advance(waiting.pop(reply.ticket), reply)
    finally:
        for env in children.values():
            pool.close(env)
    return reports


def listed_actions(observation: str) -> list[str]:
    """Commands that an observation seems to offer: quoted, bracketed, or "a, b or c"; at most 20."""
    found: list[str] = []
    found += re.findall(r"(?<!\w)'([^'\n]{1,40})'(?!\w)", observation)
    found += re.findall(r'"([^"\n]{1,40})"', observation)
    found += re.findall(r"`([^`\n]{1,40})`", observation)
    for group in re.findall(r"[\[({]([^\[\](){}\n]{1,120})[\])}]", observation):
        found += re.split(r"[,|/]", group)
    for group in re.findall(r"[\w-]+(?:, [\w-]+){0,19},? (?:or|and) [\w-]+", observation):
        found += re.split(r",? (?:or|and) |, ", group)
    return list(dict.fromkeys(action.strip() for action in found if action.strip()))[:20]


class _Rejected(Exception):
    """Ends the gate: `failure` is the class, the message the evidence."""

    def __init__(self, failure: str, evidence: str):
        super().__init__(evidence)
        self.failure = failure


@dataclasses.dataclass(frozen=True)
class _Step:
    observation: str
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]

    @property
    def done(self) -> bool:
        return self.terminated or self.truncated

    def facts(self) -> tuple[Any, ...]:
        """What must be equal in two replays."""
        return self.observation, self.reward, self.terminated, self.truncated, self.info.get("success")


_Ask = Generator[GateCall, ReplyLike, Any]
_Outcome = Generator[GateCall, ReplyLike, tuple[bool | None, str]]
_Policy = Callable[[str, str, random.Random], str]  # (first observation, last one, generator) -> command

# Failure class of a failed step or solution: by the kind of the reply, and for an
# exception by its type ("ContractError" is the sandbox's word for a reply of the wrong
# form; other types are crashes). In construct and reset a program has broken the
# contract before play began, whatever the way.
_KIND_FAILURES = {"died": "crash", "timeout": "timeout", "protocol": "contract"}
_EXCEPTION_FAILURES = {"MemoryError": "memory", "ContractError": "contract"}


class _Session:
    """One check's requests: typed answers, failures as `_Rejected`, the sandbox time spent."""

    def __init__(self, program: parse.Program, config: GateConfig):
        self.program = program
        self.config = config
        self.seconds = 0.0

    def seed(self, index: int) -> int:
        """A seed that depends on the program and is none of its training seeds."""
        digest = hashlib.sha256(f"gate:{self.program.id}:{index}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1

    def _ask(self, child: int, method: str, *args: Any, context: str) -> _Ask:
        # Child 0 is the one everything runs in; the determinism check adds 1 and 2.
        reply = yield GateCall(child, hash_seed=1 if child == 2 else 0, method=method, args=args)
        self.seconds += reply.seconds
        if reply.ok:
            return reply.value
        if reply.kind == INFRASTRUCTURE:
            raise _Rejected(INFRASTRUCTURE, f"{context}: {reply.error}")
        if method in ("construct", "reset"):
            failure = "contract"
        elif reply.kind == "exception":
            failure = _EXCEPTION_FAILURES.get(reply.error.partition(":")[0].split(" ")[0], "crash")
        else:
            failure = _KIND_FAILURES[reply.kind]
        raise _Rejected(failure, f"{context}: {reply.kind}: {reply.error}")

    def reset(self, child: int, index: int) -> _Ask:
        """A fresh instance at its first observation (str)."""
        seed = self.seed(index)
        yield from self._ask(child, "construct", context="construct")
        observation, _ = yield from self._ask(child, "reset", seed, context=f"reset(seed={seed})")
        _require_observation(observation, "reset")
        if not observation.strip():
            raise _Rejected("contract", "reset: the first observation is empty")
        return observation

    def step(self, child: int, action: str) -> _Ask:
        """One `_Step`."""
        shown = action if len(action) <= 60 else f"{action[:40]}... ({len(action)} characters)"
        value = yield from self._ask(child, "step", action, context=f"step({shown!a})")
        step = _Step(*value)
        _require_observation(step.observation, f"step({shown!a})")
        if not math.isfinite(step.reward):
            raise _Rejected("contract", f"step({shown!a}): the reward is {step.reward}")
        return step

    def solution(self, child: int) -> _Ask:
        """The program's own commands for the instance just reset."""
        commands = yield from self._ask(child, "solution", context="solution")
        return list(commands)

    def play(self, child: int, actions: Sequence[str]) -> _Ask:
        """Steps (list of `_Step`) until the episode or the list of actions ends."""
        steps = []
        for action in actions[: self.config.max_turns]:
            steps.append((yield from self.step(child, action)))
            if steps[-1].done:
                break
        return steps


def _check_contract(session: _Session) -> _Outcome:
    """Constructs, resets and survives commands that make no sense."""
    tried = 0
    for index in range(2):
        yield from session.reset(0, index)
        for action in GARBAGE:
            step = yield from session.step(0, action)
            tried += 1
            if step.done:
                yield from session.reset(0, index)
    return True, f"constructs, resets, survives {tried} garbage commands"


def _check_determinism(session: _Session) -> _Outcome:
    """The same seeds and actions in two fresh processes of different hash seeds."""
    compared = 0
    for index in range(session.config.determinism_seeds):
        first = yield from session.reset(1, index)
        scripts = [[*GARBAGE[:3], *map(_box, listed_actions(first)), *GARBAGE[3:6]]]
        if session.program.has_solution:
            solution = yield from session.solution(1)
            scripts.append([_box(command) for command in solution])
        for script in scripts:
            traces = []
            for child in (1, 2):
                observation = yield from session.reset(child, index)
                steps = yield from session.play(child, script)
                traces.append([observation, *(step.facts() for step in steps)])
            for turn, (one, other) in enumerate(zip(*traces, strict=False)):
                if one != other:
                    raise _Rejected(
                        "nondeterministic",
                        f"seed {session.seed(index)}, turn {turn}: two processes say {one!a:.100} and {other!a:.100}",
                    )
            compared += len(traces[0])
    return True, f"{compared} replies equal in two processes"


def _check_solvable(session: _Session) -> _Outcome:
    """`solution()` wins on every seed; None where the program has no `solution`."""
    if not session.program.has_solution:
        return None, "the program defines no solution()"
    lengths = []
    for index in range(session.config.solvable_seeds):
        yield from session.reset(0, index)
        commands = yield from session.solution(0)
        where = f"seed {session.seed(index)}"
        if not commands:
            raise _Rejected("unsolvable", f"{where}: solution() is empty")
        if len(commands) > session.config.max_turns:
            raise _Rejected(
                "unsolvable", f"{where}: solution() takes {len(commands)} turns of {session.config.max_turns}"
            )
        steps = yield from session.play(0, [_box(command) for command in commands])
        last = steps[-1]
        if not succeeded(last.reward, last.terminated, last.info):
            raise _Rejected(
                "unsolvable",
                f"{where}: solution() of {len(commands)} commands ends at turn {len(steps)} with reward {last.reward}",
            )
        lengths.append(len(commands))
    return True, f"solution() wins on {len(lengths)} seeds in {min(lengths)}-{max(lengths)} turns"


def _check_nontrivial(session: _Session) -> _Outcome:
    """Policies that understand nothing score next to nothing.

    A policy that scores on the first seeds gets the rest as well before it counts as
    winning: of few seeds, one lucky guess would already condemn a sound program.
    """
    averages = {}
    for name, policy in _POLICIES.items():
        scores: list[float] = []
        for seeds in (session.config.seeds, session.config.trivial_seeds):
            for index in range(len(scores), seeds):
                scores.append((yield from _mindless_score(session, policy, index)))
            averages[name] = sum(scores) / len(scores)
            if averages[name] <= session.config.trivial_score:
                break
        else:
            raise _Rejected("trivial", f'policy "{name}" averages {averages[name]:.2f} over {len(scores)} seeds')
    return True, ", ".join(f"{name} {average:.2f}" for name, average in averages.items())


def _mindless_score(session: _Session, policy: _Policy, index: int) -> _Ask:
    """The last reward of one episode, clipped to [0, 1]."""
    rng = random.Random(session.seed(index))
    first = observation = yield from session.reset(0, index)
    score = 0.0
    for _ in range(session.config.max_turns):
        step = yield from session.step(0, _box(policy(first, observation, rng)))
        observation, score = step.observation, step.reward
        if step.done:
            break
    return min(max(score, 0.0), 1.0)


def _check_varied(session: _Session) -> _Outcome:
    """Different seeds give different instances with different solutions."""
    observations, solutions = set(), set()
    for index in range(session.config.seeds):
        observations.add((yield from session.reset(0, index)))
        if session.program.has_solution:
            solutions.add(tuple((yield from session.solution(0))))
    counted = f"{len(observations)} first observations over {session.config.seeds} seeds"
    if len(observations) < session.config.distinct_observations:
        raise _Rejected("not_varied", f"{counted}; {session.config.distinct_observations} are needed")
    if len(solutions) == 1:
        raise _Rejected("not_varied", f"one solution for all {session.config.seeds} seeds: {min(solutions)!a:.100}")
    return True, f"{counted}, {len(solutions)} solutions"


def _listed_or(first: str, observation: str, fallback: str) -> list[str]:
    return listed_actions(observation) or listed_actions(first) or [fallback]


# Where nothing is listed, a word that means nothing stands in.
_POLICIES: dict[str, _Policy] = {
    "empty": lambda first, last, rng: "",
    "echo": lambda first, last, rng: last,
    "repeat-one": lambda first, last, rng: _listed_or(first, first, "look")[0],
    "done": lambda first, last, rng: "done",
    "random-listed-action": lambda first, last, rng: rng.choice(_listed_or(first, last, "look")),
}


def _box(command: str) -> str:
    return f"\\boxed{{{command}}}"


def _require_observation(observation: str, where: str) -> None:
    if len(observation) > MAX_OBSERVATION_CHARS:
        raise _Rejected(
            "contract",
            f"{where}: an observation of {len(observation)} characters; the limit is {MAX_OBSERVATION_CHARS}",
        )


def _one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= EVIDENCE_CHARS else line[: EVIDENCE_CHARS - 3] + "..."
