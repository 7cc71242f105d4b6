"""The small frozen structs that flow between rooms.

Every room may import this module and it imports no room: it is the only thing
that a producer and its consumer share. NumPy only, so that the sandbox and the
designer can use it without JAX.

Axis legend: B batch rows, T tokens, N trajectories.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

# Roles a policy plays. The integer is what the learner's arrays carry.
AGENT = "agent"
DESIGNER = "designer"
ROLES = (AGENT, DESIGNER)
ROLE_ID = {role: i for i, role in enumerate(ROLES)}

PLAIN = "plain"
HINTED = "hinted"

SUCCESS = "success"
FAILURE = "failure"
DRAW = "draw"  # of a two-player game
TRUNCATED = "truncated"
VOID = "void"

PAST_DEADLINE = "deadline"  # why an episode is void that had not ended when its rollout had to

BOX = "\\boxed{"


def boxed(command: str) -> str:
    """A command in the form in which programs receive it."""
    return f"{BOX}{command}}}"


@dataclasses.dataclass(frozen=True)
class CheckVerdict:
    """The verdict of one gate check on one program.

    Attributes:
      name: the check's name, e.g. "determinism".
      passed: True, False, or None where the check could not decide (the
        program keeps only the weaker contract, or the sandbox failed).
      evidence: one line for a person: what was run and what came out.
      seconds: wall time of the check.
    """

    name: str
    passed: bool | None
    evidence: str
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class GateReport:
    """All verdicts on one program, in the order in which the checks ran.

    Attributes:
      verdicts: one per check that ran; the gate stops at the first failure.
      failure: None for a sound program, else its failure class, a key of
        `designer.reward.FAILURE_REWARD` or "infrastructure" (masked).
      solvable: whether the reference solution was seen to win.
      behaviour: hex SHA-256 of what the program did on fixed seeds, "" where it was not observed.
    """

    verdicts: tuple[CheckVerdict, ...]
    failure: str | None
    solvable: bool
    behaviour: str = ""

    @property
    def valid(self) -> bool:
        return self.failure is None


@dataclasses.dataclass(frozen=True)
class EnvironmentRecord:
    """One program that the designer wrote (or that we bundle), with its past.

    Attributes:
      id: hex SHA-256 of the source.
      source: Python source text, untrusted.
      class_name: the environment class defined by the source.
      kind: "game" or "tool".
      skill: one of `designer.prompts.SKILLS`, or of a tool-use program's `designer.tool_prompts.DOMAINS`.
      document_id: the document that grounded it, "" for a bundled program.
      parents: ids of the memory exemplars shown in the prompt.
      prompt_hash: hex SHA-256 of the designer prompt, "" for a bundled one.
      policy_step: the update after which the writing policy stood.
      hint: privileged hint, "" when there is none.
      report: the gate's report, None before the gate ran.
      statistics: floats by name (regret, regret_se, win_rate, ...).
    """

    id: str
    source: str
    class_name: str
    kind: str = "game"
    skill: str = ""
    document_id: str = ""
    parents: tuple[str, ...] = ()
    prompt_hash: str = ""
    policy_step: int = 0
    hint: str = ""
    report: GateReport | None = None
    statistics: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Turn:
    """One exchange of a conversation: what was shown, what was answered.

    Attributes:
      observation: text shown to the policy this turn.
      prompt_tokens: int32[P] tokens added before the response.
      response_tokens: int32[R] tokens drawn, with the end-of-turn token if drawn.
      behaviour_logp: float32[R] log-probs under the distribution drawn from.
      versions: int32[R] policy version (update count) that drew each token.
      response: decoded text of the response.
      action: the command parsed from the response.
      reward: the environment's reward after this turn.
    """

    observation: str
    prompt_tokens: np.ndarray
    response_tokens: np.ndarray
    behaviour_logp: np.ndarray
    versions: np.ndarray
    response: str
    action: str
    reward: float = 0.0


@dataclasses.dataclass(frozen=True)
class Episode:
    """One play of one environment by one player.

    Attributes:
      environment_id: id of the environment's record.
      role: AGENT or DESIGNER (a designer "episode" is its single response).
      arm: PLAIN or HINTED.
      seed_index: which of the environment's paired seeds was played.
      seed: the integer passed to reset().
      turns: the exchanges, in order.
      episode_return: return in [-1, 1]; 0 where status is VOID.
      status: SUCCESS, FAILURE, DRAW, TRUNCATED or VOID.
      reason: why the episode is void or truncated, else "".
      player: seat index in multi-player games.
    """

    environment_id: str
    role: str
    arm: str
    seed_index: int
    seed: int
    turns: tuple[Turn, ...]
    episode_return: float
    status: str
    reason: str = ""
    player: int = 0

    @property
    def won(self) -> bool:
        return self.status == SUCCESS


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """One training sequence.

    Attributes:
      tokens: int32[T] the whole sequence, prompt and responses.
      loss_mask: bool[T] True on tokens the policy drew.
      behaviour_logp: float32[T] log-prob of tokens[t] given tokens[:t], as drawn;
        0 where loss_mask is False.
      role: index into ROLES.
      group: group id for group-relative estimators (environment or skill).
      episode_return: the scalar the estimator turns into an advantage.
      temperature: sampling temperature that behaviour_logp was drawn at.
      version: lowest policy version among the drawn tokens.
      weight: multiplies this trajectory's loss; 0 drops it.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    behaviour_logp: np.ndarray
    role: int
    group: int
    episode_return: float
    temperature: float = 1.0
    version: int = 0
    weight: float = 1.0


class Batch(NamedTuple):
    """A rectangular training batch; a NamedTuple, hence a JAX pytree.

    Attributes:
      tokens: int32[B, T], left-aligned, padded on the right.
      positions: int32[B, T], 0..T-1 in every row.
      loss_mask: bool[B, T], True on tokens the policy drew.
      behaviour_logp: float32[B, T].
      temperature: float32[B].
      advantage: float32[B].
      role: int32[B], index into ROLES.
      version: int32[B], lowest policy version among a row's tokens.
      weight: float32[B], 0 for a padding row.
    """

    tokens: Any
    positions: Any
    loss_mask: Any
    behaviour_logp: Any
    temperature: Any
    advantage: Any
    role: Any
    version: Any
    weight: Any


def to_jsonable(value: Any) -> Any:
    """Turns structs, arrays and tuples into what `json.dumps` accepts."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_jsonable(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): to_jsonable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(v) for v in value]
    return value


def trajectory_from_json(data: dict[str, Any]) -> Trajectory:
    """Inverse of `to_jsonable` for a Trajectory (host state in a checkpoint)."""
    return Trajectory(
        **{
            **data,
            "tokens": np.asarray(data["tokens"], np.int32),
            "loss_mask": np.asarray(data["loss_mask"], bool),
            "behaviour_logp": np.asarray(data["behaviour_logp"], np.float32),
        }
    )
