"""An opponent behind an OpenAI-compatible endpoint.

It is shown task, rules and its seat's observation, and of what it writes only the parsed action is used. Whatever goes
wrong there voids the match and nothing else.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import http.client
import json
import os
import random
import time
import urllib.error
import urllib.request
from typing import Any

from spade_jax.designer import prompts
from spade_jax.rollout.players import Answer, Question, command_of, first_prompt

_MAX_BYTES = 1 << 20  # of a reply
_CHUNK = 1 << 14
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds before a request is repeated; doubled each time
_TRANSIENT = (408, 409, 425, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class EndpointSettings:
    """Attributes:
    url: of the API, e.g. "http://localhost:8000/v1".
    model: its name there.
    key_variable: environment variable that holds the key, if one is needed; the key is stored and logged nowhere.
    timeout_secs: of one request, from connecting to the last byte.
    retries: repetitions of a request that failed for a passing reason.
    max_requests: over the whole run; beyond it matches are void.
    concurrency: requests under way at a time.
    max_new_tokens, temperature: asked for.
    """

    url: str
    model: str
    key_variable: str
    timeout_secs: float
    retries: int
    max_requests: int
    concurrency: int
    max_new_tokens: int
    temperature: float


class _Failure(Exception):
    """A request that failed, in words that hold neither key nor reply."""

    def __init__(self, message: str, *, transient: bool):
        super().__init__(message)
        self.transient = transient


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        return None


class EndpointPlayer:
    """Asks the endpoint, many requests at a time.

    Attributes:
      requests: sent so far, repetitions included; begins at `requests_before`, what an interrupted run had sent.
    """

    def __init__(self, settings: EndpointSettings, *, requests_before: int = 0):
        self._settings, self.requests = settings, requests_before
        self._threads = concurrent.futures.ThreadPoolExecutor(settings.concurrency, "endpoint")
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._asked: dict[concurrent.futures.Future, Question] = {}

    def ask(self, question: Question) -> None:
        # Rendered now: a thread must not look at a game that goes on.
        text = first_prompt(question.game, question.seat, prompts.FULL)
        self._asked[self._threads.submit(self._response, text)] = question

    def answers(self, wait: bool) -> list[Answer]:
        timeout = None if wait else 0
        done, _ = concurrent.futures.wait(self._asked, timeout, concurrent.futures.FIRST_COMPLETED)
        answers = []
        for future in [future for future in self._asked if future in done]:
            question = self._asked.pop(future)
            try:
                answers.append(Answer(question.match, question.seat, command_of(future.result())))
            except _Failure as failure:
                answers.append(Answer(question.match, question.seat, "", failure=f"endpoint: {failure}"))
        return answers

    def end(self, match: str) -> None:
        for future in [future for future, question in self._asked.items() if question.match == match]:
            future.cancel()
            del self._asked[future]

    def close(self) -> None:
        """Gives up what is under way."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _response(self, text: str) -> str:
        """The endpoint's answer, after as many repetitions as it takes and are allowed."""
        for attempt in range(self._settings.retries + 1):
            if self.requests >= self._settings.max_requests:
                raise _Failure(f"the budget of {self._settings.max_requests} requests is spent", transient=False)
            self.requests += 1
            try:
                return self._request(text)
            except _Failure as failure:
                if not failure.transient or attempt == self._settings.retries:
                    raise
            # Jitter, so that what failed together does not come back together.
            time.sleep(min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE) * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    def _request(self, text: str) -> str:
        settings = self._settings
        deadline = time.monotonic() + settings.timeout_secs
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(settings.key_variable):
            headers["Authorization"] = f"Bearer {key}"
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
        }
        request = urllib.request.Request(
            f"{settings.url.rstrip('/')}/chat/completions", json.dumps(body).encode(), headers
        )
        try:
            with self._opener.open(request, timeout=settings.timeout_secs) as reply:
                received = b""
                while chunk := reply.read1(_CHUNK):
                    received += chunk
                    if len(received) > _MAX_BYTES:
                        raise _Failure(f"a reply of more than {_MAX_BYTES} bytes", transient=False)
                    if time.monotonic() > deadline:
                        raise _Failure(f"no whole reply within {settings.timeout_secs} s", transient=True)
            content = json.loads(received)["choices"][0]["message"]["content"]
        except urllib.error.HTTPError as error:
            with error:
                raise _Failure(f"HTTP status {error.code}", transient=error.code in _TRANSIENT) from None
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            raise _Failure(f"no connection ({type(error).__name__})", transient=True) from None
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _Failure("a reply that is no chat completion", transient=False) from None
        if not isinstance(content, str):
            raise _Failure("a reply without text", transient=False)
        return content
