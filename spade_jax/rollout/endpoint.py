"""An opponent behind an OpenAI-compatible endpoint.

It is shown task, rules and its seat's observation, and of what it writes only the parsed action is used. Whatever goes
wrong there voids the match and nothing else.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import http.client
import json
import os
import random
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

from spade_jax.designer import prompts
from spade_jax.rollout.players import Answer, Question, command_of, first_prompt

_MAX_BYTES = 1 << 20  # of a reply
_CHUNK = 1 << 14
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 60.0  # seconds before a request is repeated; doubled each time
_WAIT_SECS = 0.5  # of the caller, who may have a deadline
_TRANSIENT = (408, 409, 425, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True)
class EndpointSettings:
    """Attributes:
    url: of the API, e.g. "http://localhost:8000/v1".
    model: its name there.
    key_variable: environment variable that holds the key, if one is needed; the key is stored and logged nowhere.
    timeout_secs: of one request, from connecting to the last byte.
    retries: repetitions of a request that failed for a passing reason; none while the server is silent altogether.
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
    """A request that failed, in words that hold neither key nor reply.

    Attributes:
      transient: whether it may succeed when it is repeated.
      silent: whether nobody has answered it.
      pause: seconds that the server asks for before it is repeated.
    """

    def __init__(self, message: str, *, transient: bool, silent: bool = False, pause: float = 0.0):
        super().__init__(message)
        self.transient, self.silent, self.pause = transient, silent, pause


class _Watch:
    """Ends a connection at a deadline, however busy its peer keeps it.

    A socket's own timeout begins anew with every byte, and a header may come byte by byte for ever.

    Attributes:
      ended: whether it had to.
    """

    def __init__(self, secs: float):
        self.ended = False
        self._peer: socket.socket | None = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(secs, self.end)
        self._timer.daemon = True
        self._timer.start()

    def begin(self, connected: socket.socket) -> None:
        """Watches a connection from here on."""
        with self._lock:
            self._peer = connected.dup()  # TLS takes the socket itself over
        if self.ended:
            self.end()

    def end(self) -> None:
        """Ends the connection now: whoever reads from it finds its end."""
        with self._lock:
            self.ended = True
            if self._peer is not None:
                with contextlib.suppress(OSError):  # its peer was faster
                    self._peer.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """The request is over."""
        self._timer.cancel()
        with self._lock:
            if self._peer is not None:
                self._peer.close()
                self._peer = None


class _Request(urllib.request.Request):
    watch: _Watch


class _Connection(http.client.HTTPConnection):
    watch: _Watch

    def connect(self) -> None:
        super().connect()
        self.watch.begin(self.sock)


class _TlsConnection(http.client.HTTPSConnection, _Connection):
    """By the order of its bases watched before the handshake."""


def _watched(kind: type[_Connection], request: _Request) -> Callable[..., _Connection]:
    def connection(*args: Any, **kwargs: Any) -> _Connection:
        made = kind(*args, **kwargs)
        made.watch = request.watch
        return made

    return connection


class _Http(urllib.request.HTTPHandler):
    def http_open(self, request: _Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(_Connection, request), request)


class _Https(urllib.request.HTTPSHandler):
    def __init__(self):
        self._tls = ssl.create_default_context()
        super().__init__(context=self._tls)

    def https_open(self, request: _Request) -> http.client.HTTPResponse:
        return self.do_open(_watched(_TlsConnection, request), request, context=self._tls)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the key to another host; unhandled it is an HTTP status like others."""

    def http_error_302(self, *args: Any) -> None:
        return None

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


class EndpointPlayer:
    """Asks the endpoint, many requests at a time.

    Attributes:
      requests: sent so far, repetitions included; begins at `requests_before`, what an interrupted run had sent.
    """

    def __init__(self, settings: EndpointSettings, *, requests_before: int = 0):
        self._settings, self.requests = settings, requests_before
        self._threads = concurrent.futures.ThreadPoolExecutor(settings.concurrency, "endpoint")
        self._opener = urllib.request.build_opener(_Http, _Https, _NoRedirects)
        self._lock = threading.Lock()  # of the count of requests, and of those under way
        self._watches: set[_Watch] = set()
        self._closed = threading.Event()
        self._silent = False  # whether the last request that was given up was so without an answer
        self._asked: dict[concurrent.futures.Future, Question] = {}

    def ask(self, question: Question) -> None:
        # Rendered now: a thread must not look at a game that goes on.
        text = first_prompt(question.game, question.seat, prompts.FULL)
        self._asked[self._threads.submit(self._response, text)] = question

    def answers(self, wait: bool) -> list[Answer]:
        timeout = _WAIT_SECS if wait else 0
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
        """Gives up what is under way, so that a process that ends need not wait for it."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed.set()
            for watch in self._watches:
                watch.end()

    def _response(self, text: str) -> str:
        """The endpoint's answer, after as many repetitions as it takes and are allowed."""
        for attempt in range(self._settings.retries + 1):
            with self._lock:
                if self.requests >= self._settings.max_requests:
                    raise _Failure(f"the budget of {self._settings.max_requests} requests is spent", transient=False)
                self.requests += 1
            try:
                content = self._request(text)
                self._silent = False
                return content
            except _Failure as failure:
                # A server that is gone would hold up every match for all repetitions of its own.
                last = attempt == self._settings.retries or (self._silent and failure.silent)
                if not failure.transient or last or self._closed.is_set():
                    self._silent = failure.silent
                    raise
                # Jitter, so that what failed together does not come back together.
                pause = max(_FIRST_PAUSE * 2**attempt * random.uniform(0.5, 1.0), failure.pause)
            self._closed.wait(min(pause, _LONGEST_PAUSE))
        raise AssertionError("the last attempt returns or raises")

    def _request(self, text: str) -> str:
        settings = self._settings
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get(settings.key_variable, "").strip():
            if not (key.isascii() and key.isprintable()):
                raise _Failure(f"the key in {settings.key_variable} holds what a header cannot", transient=False)
            headers["Authorization"] = f"Bearer {key}"
        body = {
            "model": settings.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": settings.max_new_tokens,
            "temperature": settings.temperature,
        }
        try:
            content = json.loads(self._exchange(headers, json.dumps(body).encode()))["choices"][0]["message"]["content"]
        except (ValueError, LookupError, TypeError, RecursionError):
            raise _Failure("a reply that is no chat completion", transient=False) from None
        if not isinstance(content, str):
            raise _Failure("a reply without text", transient=False)
        return content

    def _exchange(self, headers: dict[str, str], body: bytes) -> bytearray:
        """What the server replies."""
        secs = self._settings.timeout_secs
        late = _Failure(f"no whole reply within {secs} s", transient=True, silent=True)
        received = bytearray()
        with self._lock:
            if self._closed.is_set():
                raise _Failure("closed", transient=False)
            watch = _Watch(secs)
            self._watches.add(watch)
        try:
            request = _Request(f"{self._settings.url.rstrip('/')}/chat/completions", body, headers)
            request.watch = watch
            with self._opener.open(request, timeout=secs) as reply:
                while chunk := reply.read1(_CHUNK):
                    received += chunk
                    if len(received) > _MAX_BYTES:
                        raise _Failure(f"a reply of more than {_MAX_BYTES} bytes", transient=False)
        except urllib.error.HTTPError as error:
            with error:
                asked = error.headers.get("Retry-After", "")
                pause = float(asked) if asked.isascii() and asked.isdigit() else 0.0
                raise _Failure(f"HTTP status {error.code}", transient=error.code in _TRANSIENT, pause=pause) from None
        except (OSError, http.client.HTTPException) as error:  # URLError and timeouts are OSErrors
            if watch.ended:
                raise late from None
            cause = getattr(error, "reason", error)  # which a URLError wraps
            raise _Failure(f"no connection ({type(cause).__name__})", transient=True, silent=True) from None
        except ValueError as error:
            raise _Failure(f"a request that cannot be sent ({type(error).__name__})", transient=False) from None
        finally:
            with self._lock:
                self._watches.remove(watch)
            watch.close()
        if watch.ended:
            raise late
        return received
