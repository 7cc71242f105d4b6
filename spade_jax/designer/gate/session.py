"""One gate's conversation with the sandbox: requests out, typed answers in, failures as `Rejected`."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from spade_jax.designer import parse
from spade_jax.designer.gate.config import GateConfig
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.envs.contract import MAX_OBSERVATION_CHARS, SUCCESS_REWARD, succeeded
from spade_jax.tokens import parsing

if TYPE_CHECKING:
    from spade_jax.designer.gate.novel import Signature

EVIDENCE_CHARS = 300
# Children of one gate. Everything runs in MAIN, so that state that a program keeps across
# episodes has its chance to show; the other two are for comparison, OTHER with another hash seed.
MAIN, TWIN, OTHER = range(3)
CHILDREN = 3
_BOX = "\\boxed{"


@dataclasses.dataclass(frozen=True)
class GateCall:
    """Requests to one child of a gate, answered together; the driver opens a child at its first use.

    Attributes:
      child: which of this gate's children, below CHILDREN.
      hash_seed: PYTHONHASHSEED of the child, 0 or 1.
      calls: (method, arguments) in order; methods are those of the sandbox.
      fresh: they go to a new process that takes the child's place.
    """

    child: int
    hash_seed: int
    calls: tuple[tuple[str, tuple[Any, ...]], ...]
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


Ask = Generator[GateCall, list[ReplyLike], Any]
Outcome = Generator[GateCall, list[ReplyLike], tuple[bool | None, str]]

# Failure class of a failed step or solution: by the kind of the reply, and for an
# exception by its type ("ContractError" is the sandbox's word for a reply of the wrong
# form; other types are crashes). In construct and reset a program has broken the
# contract before play began, whatever the way.
_KIND_FAILURES = {"died": "crash", "timeout": "timeout", "protocol": "contract"}
_EXCEPTION_FAILURES = {"MemoryError": "memory", "ContractError": "contract"}


class Session:
    """One gate's requests: typed answers, failures as `Rejected`, the sandbox time spent.

    Attributes:
      program: the program.
      config: sizes of the checks.
      known: signatures of the programs that it must differ from.
      hint: its hint, None where it has none yet.
      behaviour: what `novel` has seen it do, "" before.
      seconds: sandbox time so far.
    """

    def __init__(
        self,
        program: parse.Program,
        config: GateConfig,
        known: Sequence[Signature] = (),
        hint: str | None = None,
    ):
        self.program = program
        self.config = config
        self.known = known
        self.hint = hint
        self.behaviour = ""
        self.seconds = 0.0
        self._fresh: frozenset[int] = frozenset()

    def renew(self, child: int) -> None:
        """The next call to `child` meets a process that has seen nothing."""
        self._fresh |= {child}

    def seed(self, index: int) -> int:
        """A seed in the range of the training seeds, and none of them; it depends on the program."""
        digest = hashlib.sha256(f"gate:{self.program.id}:{index}".encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1

    def _ask(self, child: int, *calls: tuple[str, tuple[Any, ...]]) -> Ask:
        """Replies to calls that are made at once; later ones may be of no interest."""
        fresh, self._fresh = child in self._fresh, self._fresh - {child}
        replies = yield GateCall(child, hash_seed=int(child == OTHER), calls=calls, fresh=fresh)
        self.seconds += sum(reply.seconds for reply in replies)
        if replies[-1].kind not in ("ok", "exception"):
            self.renew(child)  # it is gone, and that may not be the end of the gate
        return replies

    def _value(self, reply: ReplyLike, method: str, context: str) -> Any:
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

    def _opened(self, replies: Sequence[ReplyLike], seed: int, construct: bool) -> str:
        """The first observation, of replies that begin with those to `_opening`."""
        if construct:
            self._value(replies[0], "construct", "construct")
        observation, _ = self._value(replies[int(construct)], "reset", f"reset(seed={seed})")
        require_observation(observation, "reset")
        if not observation.strip():
            raise Rejected("contract", "reset: the first observation is empty")
        return observation

    def _steps(self, replies: Sequence[ReplyLike], actions: Sequence[str]) -> list[Step]:
        """Up to the end of the episode; what the program did when stepped on is its own matter."""
        steps = []
        for reply, action in zip(replies, actions, strict=True):
            shown = action if len(action) <= 60 else f"{action[:40]}... ({len(action)} characters)"
            step = Step(*self._value(reply, "step", f"step({shown!a})"))
            require_observation(step.observation, f"step({shown!a})")
            if not math.isfinite(step.reward):
                raise Rejected("contract", f"step({shown!a}): the reward is {step.reward}")
            if not -1.0 <= step.reward <= 1.0:
                raise Rejected("contract", f"step({shown!a}): the reward is {step.reward}; a return lies in [-1, 1]")
            steps.append(step)
            if step.done:
                break
        return steps

    def _step_calls(self, actions: Sequence[str]) -> list[tuple[str, tuple[Any, ...]]]:
        return [("step", (tagged(action) if self.config.kind == "tool" else action,)) for action in actions]

    def start(self, child: int, seed: int) -> Ask:
        """(first observation, info) of a new instance."""
        replies = yield from self._ask(child, *_opening(seed))
        return self._opened(replies, seed, True), replies[-1].value[1]

    def reset(self, child: int, index: int) -> Ask:
        """A new instance's first observation (str)."""
        first, _ = yield from self.episode(child, self.seed(index), ())
        return first

    def episode(self, child: int, seed: int, commands: Sequence[str], *, construct: bool = True) -> Ask:
        """(first observation, list of `Step`) of an instance that is made anew, or else only reset."""
        actions = [box(command) for command in commands[: self.config.max_turns]]
        calls = [*_opening(seed, construct), *self._step_calls(actions)]
        replies = yield from self._ask(child, *calls)
        first = self._opened(replies, seed, construct)
        return first, self._steps(replies[len(calls) - len(actions) :], actions)

    def step(self, child: int, action: str) -> Ask:
        """One `Step`; `action` is a whole response."""
        (step,) = yield from self.respond(child, [action])
        return step

    def respond(self, child: int, actions: Sequence[str]) -> Ask:
        """List of `Step` until the episode or the list of whole responses ends."""
        replies = yield from self._ask(child, *self._step_calls(actions))
        return self._steps(replies, actions)

    def solve(self, child: int, seed: int) -> Ask:
        """(first observation, the program's own commands) of a new instance."""
        replies = yield from self._ask(child, *_opening(seed), ("solution", ()))
        return self._opened(replies, seed, True), list(self._value(replies[2], "solution", "solution"))

    def secrets(self, child: int, seed: int) -> Ask:
        """The strings that the program wants kept on a new instance."""
        replies = yield from self._ask(child, *_opening(seed), ("secrets", ()))
        self._opened(replies, seed, True)
        return list(self._value(replies[2], "secrets", "secrets"))

    def play(self, child: int, commands: Sequence[str]) -> Ask:
        """List of `Step` until the episode or the list of commands ends, from where the instance stands."""
        return (yield from self.respond(child, [box(command) for command in commands[: self.config.max_turns]]))

    def require_win(self, steps: Sequence[Step], seed: int) -> None:
        """Rejects a program whose solution has not won, or has won without the reward of a win."""
        where = f"seed {seed}: solution()"
        if not steps:
            raise Rejected("unsolvable", f"{where} is empty")
        last = steps[-1]
        if not succeeded(last.reward, last.terminated, last.info):
            raise Rejected("unsolvable", f"{where} ends at turn {len(steps)} with reward {last.reward} and no success")
        if last.reward < SUCCESS_REWARD:
            raise Rejected("unsolvable", f"{where} succeeds with reward {last.reward}; a met goal is worth 1")


def _opening(seed: int, construct: bool = True) -> list[tuple[str, tuple[Any, ...]]]:
    return [*([("construct", ())] if construct else []), ("reset", (seed,))]


def box(command: str) -> str:
    return f"{_BOX}{command}}}"


def tagged(action: str) -> str:
    """A boxed command as tool-use programs get it: the checks speak of all kinds alike."""
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
