"""One gate's conversation with the sandbox: requests out, typed answers in, failures as `Rejected`."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Generator, Sequence
from typing import Any, Protocol

from spade_jax.designer import parse
from spade_jax.designer.gate.config import GateConfig
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.envs.contract import MAX_OBSERVATION_CHARS
from spade_jax.tokens import parsing

EVIDENCE_CHARS = 300
# Children of one gate. Everything runs in MAIN, so that state that a program keeps across
# episodes has its chance to show; the other two are for comparison, OTHER with another hash seed.
MAIN, TWIN, OTHER = range(3)
CHILDREN = 3
_BOX = "\\boxed{"


@dataclasses.dataclass(frozen=True)
class GateCall:
    """One request to one child of a gate; the driver opens a child at its first use.

    Attributes:
      child: which of this gate's children, below CHILDREN.
      hash_seed: PYTHONHASHSEED of the child, 0 or 1.
      method: "construct", "reset", "step" or "solution".
      args: its arguments.
      fresh: the call goes to a new process that takes the child's place.
    """

    child: int
    hash_seed: int
    method: str
    args: tuple[Any, ...] = ()
    fresh: bool = False


class ReplyLike(Protocol):
    """What the gate reads of `spade_jax.sandbox`'s Reply."""

    ok: bool
    value: Any
    error: str
    kind: str
    seconds: float


class Rejected(Exception):
    """Ends the gate: `failure` is the class, the message the evidence."""

    def __init__(self, failure: str, evidence: str):
        super().__init__(evidence)
        self.failure = failure


@dataclasses.dataclass(frozen=True)
class Step:
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


Ask = Generator[GateCall, ReplyLike, Any]
Outcome = Generator[GateCall, ReplyLike, tuple[bool | None, str]]

# Failure class of a failed step or solution: by the kind of the reply, and for an
# exception by its type ("ContractError" is the sandbox's word for a reply of the wrong
# form; other types are crashes). In construct and reset a program has broken the
# contract before play began, whatever the way.
_KIND_FAILURES = {"died": "crash", "timeout": "timeout", "protocol": "contract"}
_EXCEPTION_FAILURES = {"MemoryError": "memory", "ContractError": "contract"}


class Session:
    """One check's requests: typed answers, failures as `Rejected`, the sandbox time spent."""

    def __init__(self, program: parse.Program, config: GateConfig):
        self.program = program
        self.config = config
        self.seconds = 0.0
        self._fresh: frozenset[int] = frozenset()

    def renew(self, child: int) -> None:
        """The next call to `child` meets a process that has seen nothing."""
        self._fresh |= {child}

    def seed(self, index: int) -> int:
        """A seed in the range of the training seeds, and none of them; it depends on the program."""
        digest = hashlib.sha256(f"gate:{self.program.id}:{index}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def _ask(self, child: int, method: str, *args: Any, context: str) -> Ask:
        fresh, self._fresh = child in self._fresh, self._fresh - {child}
        reply = yield GateCall(child, hash_seed=int(child == OTHER), method=method, args=args, fresh=fresh)
        self.seconds += reply.seconds
        if reply.ok:
            return reply.value
        if reply.kind == INFRASTRUCTURE:
            raise Rejected(INFRASTRUCTURE, f"{context}: {reply.error}")
        if method in ("construct", "reset"):
            failure = "contract"
        elif reply.kind == "exception":
            failure = _EXCEPTION_FAILURES.get(reply.error.partition(":")[0].split(" ")[0], "crash")
        else:
            failure = _KIND_FAILURES[reply.kind]
        raise Rejected(failure, f"{context}: {reply.kind}: {reply.error}")

    def reset(self, child: int, index: int) -> Ask:
        """A fresh instance at its first observation (str)."""
        observation, _ = yield from self.start(child, self.seed(index))
        return observation

    def start(self, child: int, seed: int) -> Ask:
        """A fresh instance: (first observation, info)."""
        yield from self._ask(child, "construct", context="construct")
        observation, info = yield from self._ask(child, "reset", seed, context=f"reset(seed={seed})")
        require_observation(observation, "reset")
        if not observation.strip():
            raise Rejected("contract", "reset: the first observation is empty")
        return observation, info

    def step(self, child: int, action: str) -> Ask:
        """One `Step`."""
        shown = action if len(action) <= 60 else f"{action[:40]}... ({len(action)} characters)"
        if self.config.kind == "tool":
            action = tagged(action)
        value = yield from self._ask(child, "step", action, context=f"step({shown!a})")
        step = Step(*value)
        require_observation(step.observation, f"step({shown!a})")
        if not math.isfinite(step.reward):
            raise Rejected("contract", f"step({shown!a}): the reward is {step.reward}")
        return step

    def solution(self, child: int) -> Ask:
        """The program's own commands for the instance just reset."""
        commands = yield from self._ask(child, "solution", context="solution")
        return list(commands)

    def play(self, child: int, actions: Sequence[str]) -> Ask:
        """Steps (list of `Step`) until the episode or the list of actions ends."""
        steps = []
        for action in actions[: self.config.max_turns]:
            steps.append((yield from self.step(child, action)))
            if steps[-1].done:
                break
        return steps


def box(command: str) -> str:
    return f"{_BOX}{command}}}"


def tagged(action: str) -> str:
    """A boxed command as tool-use programs get it; the checks speak of both kinds alike."""
    boxed = action.startswith(_BOX) and action.endswith("}")
    return parsing.action_for(action[len(_BOX) : -1], "tool") if boxed else action


def require_observation(observation: str, where: str) -> None:
    if len(observation) > MAX_OBSERVATION_CHARS:
        raise Rejected(
            "contract",
            f"{where}: an observation of {len(observation)} characters; the limit is {MAX_OBSERVATION_CHARS}",
        )


def one_line(text: object) -> str:
    line = " ".join(str(text).split())
    return line if len(line) <= EVIDENCE_CHARS else line[: EVIDENCE_CHARS - 3] + "..."
