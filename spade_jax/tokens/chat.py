"""The chat template: role headers, message ends, token-in token-out continuation."""

from __future__ import annotations

from collections.abc import Sequence

from spade_jax.tokens import tokenizer as tokenizer_lib


class ChatTemplate:
    """Renders conversations to token ids.

    A conversation is `<|bos|>` and then, per message, `<|role|> text <|end|>`. A
    prompt ends with `<|assistant|>`; the policy draws the text and `<|end|>`.
    Earlier turns are never re-tokenised: `continuation` gives only the new ids.
    """

    def __init__(self, tokenizer: tokenizer_lib.Tokenizer):
        self.tokenizer = tokenizer
        self._bos = tokenizer.control_id(tokenizer_lib.BOS)
        self._header = {
            role: tokenizer.control_id(tokenizer_lib.role_header(role)) for role in tokenizer_lib.MESSAGE_ROLES
        }

    def prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a new conversation of (role, text) messages, ready to be answered."""
        ids = [self._bos]
        for role, text in messages:
            ids += self._message(role, text)
        return [*ids, self._header[tokenizer_lib.ASSISTANT]]

    def continuation(self, text: str, closed: bool = True) -> list[int]:
        """Ids that follow a response: the user's next message.

        `closed` says whether the response ended with `<|end|>`; where it was cut off
        by its token budget the end is supplied here, as a token nobody drew.
        """
        end = [] if closed else [self.tokenizer.end_id]
        return [*end, *self._message(tokenizer_lib.USER, text), self._header[tokenizer_lib.ASSISTANT]]

    def _message(self, role: str, text: str) -> list[int]:
        return [self._header[role], *self.tokenizer.encode(text), self.tokenizer.end_id]
