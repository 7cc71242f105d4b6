"""Chat templates of published models: the model's own Jinja template, rendered as its makers render it.

Messages are untrusted. Where they spell no control token, the rendered text is encoded as a whole, which is what
everybody else does. Where they do, the template is rendered around placeholders, so that it is known which control
tokens are the template's; text between those is encoded as plain text.

History is never encoded anew. Where a template changes past messages once the conversation goes on (Qwen3 takes the
reasoning out of them), ours keeps them as they were: the tokens that were drawn are those that are trained on.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from spade_jax.tokens import huggingface
from spade_jax.tokens import tokenizer as tokenizer_lib

_PLACEHOLDER = "\ue000{}\ue001"
_ANY_PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")


class JinjaTemplate:
    """The `ChatTemplate` of a model that brings its own.

    Args:
      tokenizer: the model's.
      source: the Jinja template. It runs in a sandbox.
      variables: what it sees beside the messages, e.g. enable_thinking.

    Raises:
      ValueError: the template cannot be rendered, or ends no message with a control token.
    """

    def __init__(
        self, tokenizer: huggingface.HuggingFaceTokenizer, source: str, variables: Mapping[str, Any] | None = None
    ):
        self._variables = {**tokenizer.named, **(variables or {})}
        self.source = source
        self._template = _compile(source)
        tail = self._after_answer(tokenizer)
        self.tokenizer = tokenizer.ending_with(tail)
        self._has_system = self._keeps_system()

    # -- what rollouts use --------------------------------------------------------

    def prompt(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Ids of a new conversation of (role, text) messages, ready to be answered."""
        messages = [(role, huggingface.without_surrogates(text)) for role, text in messages]
        if not self._has_system and messages[0][0] == tokenizer_lib.SYSTEM:
            # A template without system messages: its text begins the first user message, as Gemma's makers advise.
            (_, first), (role, second), *rest = messages
            messages = [(role, f"{first}\n\n{second}"), *rest]
        texts = [text for _, text in messages]
        return self._ids(self._render(_outlined(messages)), texts, self._render(messages))

    def continuation(self, text: str, closed: bool = True) -> list[int]:
        """Ids that follow a response: the user's next message; see `ChatTemplate.continuation`."""
        text = huggingface.without_surrogates(text)
        outline = self._tail(_outlined([("user", "q"), ("assistant", "a"), ("user", text)]))
        whole = _ANY_PLACEHOLDER.sub(lambda match: text.strip() if match[1] == "2" else "", outline)
        end = [] if closed else [self.tokenizer.end_id]
        return [*end, *self._ids(outline, ["", "", text], whole)]

    def text(self, messages: Sequence[tuple[str, str]]) -> str:
        """The rendered conversation, ready to be answered."""
        return self._render(messages)

    # -- rendering -------------------------------------------------------------------

    def _render(self, messages: Sequence[tuple[str, str]]) -> str:
        import jinja2

        rendered = [{"role": role, "content": text} for role, text in messages]
        try:
            return self._template.render(messages=rendered, add_generation_prompt=True, **self._variables)
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ValueError(f"the chat template cannot be rendered ({error})") from error

    def _keeps_system(self) -> bool:
        messages = _outlined([("system", "s"), ("user", "q")])
        try:
            return messages[0][1] in self._render(messages)
        except ValueError:  # Gemma 2's raises
            return False

    def _after_answer(self, tokenizer: huggingface.HuggingFaceTokenizer) -> str:
        """The control token that ends an assistant's message."""
        messages = _outlined([("user", "q"), ("assistant", "a"), ("user", "q")])
        _, _, tail = self._render(messages).partition(messages[1][1])
        match = tokenizer.control_pattern.search(tail)
        if match is None or tail[: match.start()].strip():
            raise ValueError("the chat template ends an assistant's message with no control token of the tokenizer")
        return match[0]

    def _tail(self, messages: Sequence[tuple[str, str]]) -> str:
        """The rendered text behind the end of the second message."""
        _, _, tail = self._render(messages).partition(messages[1][1])
        return tail[self.tokenizer.control_pattern.search(tail).end() :]

    # -- encoding --------------------------------------------------------------------

    def _ids(self, outline: str, texts: Sequence[str], whole: str) -> list[int]:
        """Ids of a rendered text.

        Args:
          outline: with placeholders for the messages, surrounded by the messages' own white space.
          texts: the messages.
          whole: with the messages.
        """
        pattern, control = self.tokenizer.control_pattern, self.tokenizer.control_ids
        expected = len(pattern.findall(outline))
        if not any(pattern.search(text) for text in texts):
            ids = self.tokenizer.encode_trusted(whole)
            if sum(i in control for i in ids) == expected:
                return ids
        ids, start = [], 0
        for match in [*pattern.finditer(outline), None]:
            part = outline[start : match.start() if match else len(outline)]
            ids += self.tokenizer.encode(_ANY_PLACEHOLDER.sub(lambda m: texts[int(m[1])].strip(), part))
            if match:
                ids.append(self.tokenizer.control_id(match[0]))
                start = match.end()
        return ids


def _outlined(messages: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The messages with placeholders for their texts; white space around a text stays, since templates may strip it."""
    outlined = []
    for i, (role, text) in enumerate(messages):
        lead = text[: len(text) - len(text.lstrip())]
        trail = text[len(text.rstrip()) :] if text.strip() else ""
        outlined.append((role, f"{lead}{_PLACEHOLDER.format(i)}{trail}"))
    return outlined


def _compile(source: str) -> Any:
    """The template with the functions and filters that the makers of models write for."""
    try:
        import jinja2
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError as error:
        raise ValueError("chat templates need the jinja2 package; install spade_jax[hf]") from error

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)  # Jinja's own escapes HTML

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = to_json
    # No `strftime_now`: a prompt must not depend on the day of the run. Templates then use a fixed date.
    environment.globals["raise_exception"] = raise_exception
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ValueError(f"the chat template is no Jinja template ({error})") from error


def load(path: str | pathlib.Path, *, thinking: bool = True) -> JinjaTemplate:
    """The template of a Hugging Face folder or a GGUF file.

    Args:
      path: of either.
      thinking: what the template is told as enable_thinking; only those of models that can do both ask.

    Raises:
      ValueError: there is none that can be used.
    """
    path = pathlib.Path(path)
    tokenizer, source = huggingface.from_folder(path) if path.is_dir() else huggingface.from_gguf(path)
    return JinjaTemplate(tokenizer, source, {"enable_thinking": thinking})
