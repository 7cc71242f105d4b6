"""Plays episodes: one single-threaded loop that overlaps decoding with replies.

While the policy decodes a block for the conversations that have a prompt, the
environments of the others compute their replies in the sandbox. Nothing here
blocks the device on a reply, except where a fixed schedule is asked for.

Reproducibility: a token's key does not depend on timing, but a matrix product
may round differently in a batch of another shape. With `reply_blocks >= 1` the
reply to a command asked for after decode block b is taken up after block
b + `reply_blocks`, whether it arrived earlier or has to be waited for: the
schedule, hence every bit, is then a function of the seeds alone. With 0 replies
are taken up as they come. A deadline that passes makes it a function of time.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from spade_jax import structs
from spade_jax.designer import prompts, tool_prompts
from spade_jax.envs import contract
from spade_jax.runtime import hosts
from spade_jax.runtime.seeds import environment_seed
from spade_jax.sampler import Engine, Response, SamplingConfig
from spade_jax.sandbox import Pool, Reply
from spade_jax.tokens import chat, parsing

_PATIENCE_SECS = 0.1  # between two looks at the clock while nothing but replies is waited for
_GLANCE_SECS = 0.002  # between two looks at whether a block is drawn
_PARTS = 8  # behind one block at most this part of the environments is started: they are waited for behind the next


@dataclasses.dataclass(frozen=True)
class EpisodeSettings:
    """How an agent plays.

    Attributes:
      sampling: the distribution the agent's tokens are drawn from.
      max_turns: responses per episode; more truncate it.
      max_new_tokens: tokens per response; a response cut off there still acts.
      context: tokens per conversation.
      style: prompt style, see `designer.prompts`.
      reply_blocks: decode blocks between a command and the taking up of its reply.
      max_live: environments alive at one time.
      truncated_scores_zero: True pays 0 for an episode that did not terminate
        (paper); False pays the last score.
      crashes_are_void: False turns an episode whose program crashed into a failure
        of the agent (paper), which punishes it for the designer's fault.
    """

    sampling: SamplingConfig
    max_turns: int
    max_new_tokens: int
    context: int
    style: str
    reply_blocks: int = 1
    max_live: int = 256
    truncated_scores_zero: bool = False
    crashes_are_void: bool = True


@dataclasses.dataclass(frozen=True)
class EpisodeRequest:
    """One episode to be played.

    Attributes:
      record: the environment; its hint is shown in the hinted arm.
      arm: PLAIN or HINTED.
      seed_index: index of the paired seed.
      seed: what reset() receives.
      conversation_id: unique in the run; the sampling keys derive from it.
    """

    record: structs.EnvironmentRecord
    arm: str
    seed_index: int
    seed: int
    conversation_id: str


def paired_requests(
    records: Sequence[structs.EnvironmentRecord], *, step: int, first_index: int, seeds: int, paired: bool
) -> list[EpisodeRequest]:
    """One rollout: every environment, `seeds` plays per arm.

    Args:
      records: the environments in play, no id twice.
      step: policy step, part of the conversation ids.
      first_index: index of the first environment seed, so that every rollout of a
        window meets fresh instances.
      seeds: S, plays per arm.
      paired: both arms meet the same instances; else the hinted arm gets its own.
    """
    requests = []
    for record in records:
        for arm in (structs.PLAIN, structs.HINTED):
            for index in range(first_index, first_index + seeds):
                name = record.id if paired or arm == structs.PLAIN else f"{record.id}/{arm}"
                conversation = f"{step}/{record.id}/{arm}/{index}"
                requests.append(EpisodeRequest(record, arm, index, environment_seed(name, index), conversation))
    return requests


class _Play:
    """One episode under way."""

    def __init__(self, index: int, request: EpisodeRequest):
        self.index = index
        self.request = request
        self.environment: int | None = None
        self.handle: int | None = None
        self.observation = ""
        self.prompt: list[int] = []
        self.turns: list[structs.Turn] = []
        self.last_closed = True


def play_episodes(
    engine: Engine,
    pool: Pool,
    template: chat.ChatTemplate,
    requests: Sequence[EpisodeRequest],
    settings: EpisodeSettings,
    *,
    deadline_secs: float = 0.0,
) -> list[structs.Episode]:
    """Plays all `requests`, of several processes each its share, and returns their episodes in the same order.

    Whatever a program does costs its own episode (status VOID) and nothing else.

    Args:
      deadline_secs: after which what has not ended, or not begun, is void (PAST_DEADLINE), in every process, see
        `hosts.deadline`; 0 for none.
    """
    name = requests[0].conversation_id if requests else ""
    with hosts.deadline(name, deadline_secs) as over:
        return hosts.spread(
            requests,
            lambda share: _Loop(engine, pool, template, share, settings, over, patient=not deadline_secs).run(),
            structs.Episode,
            structs.Turn,
            # Both arms of a pair: what a lost host costs is then worth nothing to the others anyway.
            together=lambda request: (request.record.id, request.seed_index),
        )


@dataclasses.dataclass(frozen=True)
class _Request:
    """A call of an environment; what it hangs on was known once decode block `block` was drawn."""

    ticket: int
    block: int
    play: _Play
    method: str


class _Loop:
    def __init__(self, engine, pool, template, requests, settings, over: Callable[[], bool], *, patient: bool):
        self._engine: Engine = engine
        self._pool: Pool = pool
        self._template: chat.ChatTemplate = template
        self._settings: EpisodeSettings = settings
        self._over = over
        self._patience = None if patient else _PATIENCE_SECS
        self._plays = [_Play(i, request) for i, request in enumerate(requests)]
        self._waiting = collections.deque(self._plays)
        self._episodes: list[structs.Episode | None] = [None] * len(requests)
        self._asked: list[_Request] = []  # in the order they were asked
        self._arrived: dict[int, Reply] = {}
        self._speaking: dict[int, _Play] = {}  # by sampler handle
        self._unread: list[Response] = []
        self._live = 0
        self._block = 0
        self._sent = -1  # the last block behind which commands were sent

    def run(self) -> list[structs.Episode]:
        try:
            while (self._waiting or self._live) and not self._over():
                if not self._engine.busy:
                    self._send(self._block)
                self._block += 1
                responses = self._engine.step(meanwhile=self._meanwhile)
                self._send(self._block - 1)
                self._unread = responses
                self._take_up()
            for play in self._plays:
                if self._episodes[play.index] is None:
                    self._finish(play, structs.VOID, reason=structs.PAST_DEADLINE)
        finally:
            for play in [*self._speaking.values(), *(request.play for request in self._asked)]:
                self._release(play)
        return self._episodes

    def _meanwhile(self, drawing: Callable[[], bool]) -> None:
        """What need not wait for the block that is being drawn."""
        self._send(self._block - 1)
        self._collect(0.0)  # a pool on other machines sends only now what was asked for
        self._take_up(drawing)

    # -- environments ---------------------------------------------------------

    def _send(self, block: int) -> None:
        """Sends, once behind a block, the commands of the responses that it ended, and starts environments.

        Args:
          block: the last one that is drawn. Where another is being drawn already, the replies are due behind that one
            none the less.
        """
        if self._sent == block:
            return
        self._sent = block
        responses, self._unread = self._unread, []
        for response in responses:
            self._responded(self._speaking[response.handle], response, block)
        most = self._settings.max_live
        for _ in range(min(len(self._waiting), most - self._live, -(-most // _PARTS))):
            play = self._waiting.popleft()
            self._live += 1
            play.environment = self._pool.open(play.request.record.source, play.request.record.class_name)
            self._ask(play, block, "construct")

    def _ask(self, play: _Play, block: int, method: str, *args) -> None:
        ticket = self._pool.request(play.environment, method, *args)
        self._asked.append(_Request(ticket, block, play, method))

    def _take_up(self, drawing: Callable[[], bool] | None = None) -> None:
        """Lets the replies that are due before the next block have their effect.

        Args:
          drawing: whether the present block is still being drawn, during which they can be taken up already. Those that
            are not all there when it ends are waited for behind it. Either way the same is done in the same order.
        """
        for request in self._due(drawing):
            self._replied(request.play, request.method, self._arrived.pop(request.ticket))

    def _due(self, drawing: Callable[[], bool] | None) -> list[_Request]:
        """Those whose replies are taken up now: the older first, those of one block by the order of the plays."""
        # Nothing was drawn, and nothing will be. (Not so where a block has just ended all responses: what was taken up
        # while it was drawn hangs on timing, and what is done next must not.)
        idle = drawing is None and not self._engine.busy and not self._unread
        if self._settings.reply_blocks == 0:
            self._collect(self._patience if idle and self._asked else 0.0)
            due = [request for request in self._asked if request.ticket in self._arrived]
        else:
            due = [r for r in self._asked if r.block + self._settings.reply_blocks <= self._block]
            if idle and not due:
                due = list(self._asked)
            due.sort(key=lambda request: (request.block, request.play.index))
            while any(request.ticket not in self._arrived for request in due):
                if self._over() or (drawing is not None and not drawing()):
                    return []
                self._collect(self._patience if drawing is None else _GLANCE_SECS)
        taken = {request.ticket for request in due}
        self._asked = [request for request in self._asked if request.ticket not in taken]
        return due

    def _collect(self, timeout: float | None) -> None:
        for reply in self._pool.poll(timeout):
            self._arrived[reply.ticket] = reply

    def _replied(self, play: _Play, method: str, reply: Reply) -> None:
        if not reply.ok:
            void = self._settings.crashes_are_void or reply.kind == "infrastructure"
            self._finish(play, structs.VOID if void else structs.FAILURE, reason=f"{reply.kind}: {reply.error}")
        elif method == "construct":
            self._ask(play, self._block, "reset", play.request.seed)
        elif method == "reset":
            observation, _ = reply.value
            agent_prompt = tool_prompts.agent_prompt if play.request.record.kind == "tool" else prompts.agent_prompt
            first = agent_prompt(observation, self._hint(play), style=self._settings.style)
            self._submit(play, observation, self._template.prompt([("user", first)]))
        else:
            self._stepped(play, *reply.value)

    def _hint(self, play: _Play) -> str | None:
        return play.request.record.hint if play.request.arm == structs.HINTED else None

    def _stepped(self, play: _Play, observation: str, reward: float, terminated: bool, truncated: bool, info) -> None:
        play.turns[-1] = dataclasses.replace(play.turns[-1], reward=reward)
        if contract.succeeded(reward, terminated, info):
            self._finish(play, structs.SUCCESS)
        elif terminated:
            self._finish(play, structs.FAILURE)
        elif truncated or len(play.turns) >= self._settings.max_turns:
            self._finish(play, structs.TRUNCATED, reason="turn budget")
        else:
            text = prompts.agent_turn(observation)
            self._submit(play, observation, self._template.continuation(text, closed=play.last_closed))

    # -- the policy -----------------------------------------------------------

    def _submit(self, play: _Play, observation: str, prompt: list[int]) -> None:
        if play.handle is None:
            play.handle = self._engine.open(
                play.request.conversation_id, self._settings.sampling, f"{play.request.record.id}/{play.request.arm}"
            )
            self._speaking[play.handle] = play
        if self._engine.length(play.handle) + len(prompt) + 1 >= self._settings.context:
            self._finish(play, structs.TRUNCATED, reason="context")
            return
        play.observation, play.prompt = observation, prompt
        self._engine.submit(play.handle, np.asarray(prompt, np.int32), self._settings.max_new_tokens)

    def _responded(self, play: _Play, response: Response, block: int) -> None:
        text = self._template.tokenizer.decode(response.tokens)
        action = parsing.action_of(text, play.request.record.kind)
        play.last_closed = response.stopped
        play.turns.append(
            structs.Turn(
                observation=play.observation,
                prompt_tokens=np.asarray(play.prompt, np.int32),
                response_tokens=response.tokens,
                behaviour_logp=response.logp,
                versions=response.versions,
                response=text,
                action=action,
            )
        )
        if response.out_of_context:
            self._finish(play, structs.TRUNCATED, reason="context")
        else:
            self._ask(play, block, "step", action)

    # -- the end --------------------------------------------------------------

    def _finish(self, play: _Play, status: str, reason: str = "") -> None:
        self._release(play)
        terminated = status in (structs.SUCCESS, structs.FAILURE)
        if status == structs.VOID or not play.turns or (self._settings.truncated_scores_zero and not terminated):
            episode_return = 0.0
        else:
            episode_return = float(np.clip(play.turns[-1].reward, -1.0, 1.0))
        request = play.request
        self._episodes[play.index] = structs.Episode(
            environment_id=request.record.id,
            role=structs.AGENT,
            arm=request.arm,
            seed_index=request.seed_index,
            seed=request.seed,
            turns=tuple(play.turns),
            episode_return=episode_return,
            status=status,
            reason=reason,
        )

    def _release(self, play: _Play) -> None:
        if play.handle is not None:
            self._speaking.pop(play.handle, None)
            self._engine.close(play.handle)
            play.handle = None
        if play.environment is not None:
            self._pool.close(play.environment)
            play.environment = None
            self._live -= 1
