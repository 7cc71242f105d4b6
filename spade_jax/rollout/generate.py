"""Single responses to single prompts: the designer's programs and hints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spade_jax import structs
from spade_jax.runtime import hosts
from spade_jax.sampler import Engine, SamplingConfig
from spade_jax.tokens import chat


def generate(
    engine: Engine,
    template: chat.ChatTemplate,
    prompts: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    sampling: SamplingConfig,
    max_new_tokens: int,
) -> list[structs.Turn]:
    """Draws one response per prompt; of several processes each draws its share.

    Args:
      engine: the sampler.
      template: renders messages to tokens.
      prompts: (conversation id, messages) pairs; the id is unique in the run.
      sampling: the distribution to draw from.
      max_new_tokens: budget of each response.

    Returns:
      One `Turn` per prompt, in order. `observation` is the last message's text.
    """
    return hosts.spread(
        prompts, lambda share: _draw(engine, template, share, sampling, max_new_tokens), structs.Turn
    )


def _draw(
    engine: Engine,
    template: chat.ChatTemplate,
    prompts: Sequence[tuple[str, Sequence[tuple[str, str]]]],
    sampling: SamplingConfig,
    max_new_tokens: int,
) -> list[structs.Turn]:
    turns: dict[int, structs.Turn] = {}
    handles = []
    for conversation_id, messages in prompts:
        tokens = np.asarray(template.prompt(messages), np.int32)
        handle = engine.open(conversation_id, sampling, group="prompts")  # most begin with the same instructions
        engine.submit(handle, tokens, max_new_tokens)
        handles.append((handle, tokens, messages[-1][1]))
    by_handle = {handle: (tokens, text) for handle, tokens, text in handles}
    while engine.busy:
        for response in engine.step():
            tokens, observation = by_handle[response.handle]
            text = template.tokenizer.decode(response.tokens)
            turns[response.handle] = structs.Turn(
                observation=observation,
                prompt_tokens=tokens,
                response_tokens=response.tokens,
                behaviour_logp=response.logp,
                versions=response.versions,
                response=text,
                action=text,
            )
            engine.close(response.handle)
    return [turns[handle] for handle, _, _ in handles]


def fits(
    template: chat.ChatTemplate, messages: Sequence[tuple[str, str]], context: int, max_new_tokens: int
) -> bool:
    """Whether a prompt leaves room for a whole response."""
    return len(template.prompt(messages)) + max_new_tokens < context
