"""Who sits at a game: the policy, an earlier policy, or a scripted player.

A player is asked for a move and answers later, so that many games go on at once. It is told what its own seat
observes and nothing else; a scripted player may look at the game, but never at what anybody wrote.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from spade_jax import structs
from spade_jax.designer import prompts
from spade_jax.envs.games import Game
from spade_jax.runtime.seeds import host_rng
from spade_jax.sampler import Engine, Response, SamplingConfig
from spade_jax.tokens import chat, parsing

CONTEXTS = ("turn", "conversation")

_TASK = "You are playing a two-player zero-sum game. Make valid actions to win."
_ANSWER = "Reason step by step, then put your action within \\boxed{}."


@dataclasses.dataclass(frozen=True)
class Question:
    """A seat is to move.

    Attributes:
      match: id of the match, unique in the run.
      seat: who is asked.
      move: number of the move in the match, from 0.
      game: the play; a text player reads its seat's observation only.
    """

    match: str
    seat: int
    move: int
    game: Game


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a seat does.

    Attributes:
      match, seat: whose it is.
      command: what is to be parsed as an action.
      turn: tokens and log-probs, for a player that has them.
      failure: why the match cannot go on through no fault of a move, else "".
    """

    match: str
    seat: int
    command: str
    turn: structs.Turn | None = None
    failure: str = ""


class Player(Protocol):
    """What `games.play_matches` asks of a player. Several matches, and both seats of one, may share it."""

    def ask(self, question: Question) -> None:
        """Takes a question; `answers` returns its answer sooner or later."""

    def answers(self, wait: bool) -> list[Answer]:
        """What has been answered, after some work at the rest; with `wait`, not without some time for it."""

    def end(self, match: str) -> None:
        """The match is over: what is kept for it may go, an open question too."""


def command_of(response: str) -> str:
    """The command in a response: what its last box holds; without a box, the whole answer."""
    command = parsing.last_boxed(response)
    return parsing.answer_part(response).strip() if command is None else command


def first_prompt(game: Game, seat: int, style: str) -> str:
    """What a player is shown when it has no conversation yet.

    In style "full" task, rules, observation; in style "tiny", for the embedded policy, which knows the rules from
    plays, what varies.
    """
    if style == prompts.TINY:
        return f"{game.name}\n{game.observe(seat)}"
    return f"{_TASK}\n{game.rules()}\n{game.observe(seat)}\n{_ANSWER}"


@dataclasses.dataclass(frozen=True)
class PolicySettings:
    """How a policy plays.

    Attributes:
      sampling: the distribution its tokens are drawn from.
      max_new_tokens: of one response; a cut one counts as it stands.
      style: of the prompts, "tiny" or "full".
      context: "turn" shows every move in a conversation of its own, "conversation" all moves of a seat in one.
    """

    sampling: SamplingConfig
    max_new_tokens: int
    style: str
    context: str


class PolicyPlayer:
    """A language model on the sampler. One object plays both seats of self-play."""

    def __init__(self, engine: Engine, template: chat.ChatTemplate, settings: PolicySettings):
        self._engine, self._template, self._settings = engine, template, settings
        self._asked: dict[int, tuple[Question, str, np.ndarray]] = {}  # by sampler handle
        self._open: dict[tuple[str, int], int] = {}  # handle of a seat's conversation
        self._closed: dict[int, bool] = {}  # whether a conversation's last response ended by itself

    def ask(self, question: Question) -> None:
        seat = (question.match, question.seat)
        handle = self._open.get(seat)
        if handle is None:
            name = f"{question.match}/{question.seat}"
            if self._settings.context == "turn":
                name += f"/{question.move}"
            handle = self._engine.open(name, self._settings.sampling, question.game.name)
            text = first_prompt(question.game, question.seat, self._settings.style)
            prompt = self._template.prompt([("user", text)])
            self._open[seat] = handle
        else:
            text = question.game.observe(question.seat)
            prompt = self._template.continuation(text, closed=self._closed[handle])
        tokens = np.asarray(prompt, np.int32)
        self._asked[handle] = (question, text, tokens)
        self._engine.submit(handle, tokens, self._settings.max_new_tokens)

    def answers(self, wait: bool) -> list[Answer]:
        del wait  # a decode block takes its time
        return [self._answer(response) for response in self._engine.step()] if self._engine.busy else []

    def _answer(self, response: Response) -> Answer:
        question, text, tokens = self._asked.pop(response.handle)
        if self._settings.context == "turn":
            self._close((question.match, question.seat))
        else:
            self._closed[response.handle] = response.stopped
        if not len(response.tokens):
            return Answer(question.match, question.seat, "", failure="context")
        written = self._template.tokenizer.decode(response.tokens)
        command = command_of(written)
        turn = structs.Turn(
            observation=text,
            prompt_tokens=tokens,
            response_tokens=response.tokens,
            behaviour_logp=response.logp,
            versions=response.versions,
            response=written,
            action=command,
        )
        return Answer(question.match, question.seat, command, turn)

    def _close(self, seat: tuple[str, int]) -> None:
        handle = self._open.pop(seat, None)
        if handle is not None:
            self._engine.close(handle)
            self._asked.pop(handle, None)
            self._closed.pop(handle, None)

    def end(self, match: str) -> None:
        for seat in (0, 1):
            self._close((match, seat))


class ScriptedPlayer:
    """A rule that picks one of the actions it likes, uniformly.

    Args:
      candidates: game -> the actions it would play; the game is not to be changed.
      name: keys its draws, with match, seat and move.
    """

    def __init__(self, name: str, candidates: Callable[[Game], Sequence[str]]):
        self._name, self._candidates = name, candidates
        self._answers: list[Answer] = []

    def ask(self, question: Question) -> None:
        rng = host_rng(self._name, question.match, question.seat, question.move)
        action = rng.choice(self._candidates(question.game))
        self._answers.append(Answer(question.match, question.seat, action))

    def answers(self, wait: bool) -> list[Answer]:
        del wait
        answers, self._answers = self._answers, []
        return answers

    def end(self, match: str) -> None:
        self._answers = [answer for answer in self._answers if answer.match != match]


def random_player() -> ScriptedPlayer:
    """Any legal action."""
    return ScriptedPlayer("random", lambda game: game.legal_actions())
