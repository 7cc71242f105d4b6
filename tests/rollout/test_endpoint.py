"""The endpoint opponent against a local server that behaves, fails, dribbles, lies and dies."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import socket
import threading
import time

import pytest

from spade_jax.envs.games import GAMES, make_game
from spade_jax.rollout import endpoint, games
from spade_jax.rollout.players import Question, random_player

KEY = "secret-key-31415"


@contextlib.contextmanager
def server(behave):
    """A local server; `behave(handler, request number)` answers. Yields (url, server, what was received)."""
    received = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            received.append((self.path, dict(self.headers), body))
            with contextlib.suppress(OSError):
                behave(self, len(received))

        def log_message(self, *args):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.daemon_threads = True
    threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{served.server_port}/v1", served, received
    finally:
        served.shutdown()
        served.server_close()


def reply(handler, status=200, content="", body=None, headers=()):
    data = json.dumps({"choices": [{"message": {"content": content}}]}).encode() if body is None else body
    handler.send_response(status)
    for name, value in headers:
        handler.send_header(name, value)
    handler.send_header("Content-Length", str(len(data)))
    handler.end_headers()
    handler.wfile.write(data)


def play_tictactoe(handler, received):
    board = received[-1][2]["messages"][0]["content"].split("You play ")[1].splitlines()[1:4]
    free = [word for row in board for word in row.split() if word.isdigit()]
    reply(handler, content=f"HIDDEN thoughts \\boxed{{[{free[0]}]}}")


def settings(url, **changes):
    return endpoint.EndpointSettings(
        **{
            "url": url, "model": "m", "key_variable": "SPADE_TEST_KEY", "timeout_secs": 5.0, "retries": 2,
            "max_requests": 1000, "concurrency": 4, "max_new_tokens": 64, "temperature": 0.5, **changes,
        }
    )  # fmt: skip


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(endpoint, "_FIRST_PAUSE", 0.01)
    monkeypatch.setenv("SPADE_TEST_KEY", KEY)


def play(url, count=4, **changes):
    player = endpoint.EndpointPlayer(settings(url, **changes))
    requests = [games.MatchRequest(f"x/{i}", "tictactoe", i, ("a", "b") if i % 2 else ("b", "a")) for i in range(count)]
    rules = games.MatchSettings({name: {} for name in GAMES}, 50, (-1.0, 0.0), 8)
    try:
        return games.play_matches({"a": random_player(), "b": player}, requests, rules), player
    finally:
        player.close()


def test_matches_are_played_to_the_end_and_the_key_goes_into_the_header_only():
    with server(lambda handler, n: play_tictactoe(handler, received)) as (url, _, received):
        matches, player = play(url, concurrency=1)
    assert all(match.ending == games.BY_RULES for match in matches)
    path, headers, body = received[0]
    assert path == "/v1/chat/completions" and headers["Authorization"] == f"Bearer {KEY}"
    assert body["model"] == "m" and body["max_tokens"] == 64 and body["temperature"] == 0.5
    assert KEY not in json.dumps([body for _, _, body in received])
    assert not any("HIDDEN" in json.dumps(body) for _, _, body in received)
    assert player.requests == len(received)


def test_without_a_key_there_is_no_header(monkeypatch):
    monkeypatch.delenv("SPADE_TEST_KEY")
    with server(lambda handler, n: reply(handler, content="\\boxed{[9]}")) as (url, _, received):
        matches, _ = play(url)
    assert "Authorization" not in received[0][1]
    assert all(match.ending == games.BY_INVALID for match in matches)


def test_a_passing_failure_is_repeated_and_a_lasting_one_is_not():
    def first_fails(handler, number):
        reply(handler, status=503) if number <= 2 else reply(handler, content="\\boxed{[no]}")

    with server(first_fails) as (url, _, received):
        (match,), _ = play(url, count=1)
        assert match.ending == games.BY_INVALID and len(received) == 3
    with server(lambda handler, n: reply(handler, status=401)) as (url, _, received):
        (match,), _ = play(url, count=1)
        assert match.ending == games.VOID and match.reason == "endpoint: HTTP status 401" and len(received) == 1


def test_a_redirect_is_not_followed_with_the_key():
    with server(lambda handler, n: reply(handler)) as (elsewhere, _, stolen):
        headers = (("Location", elsewhere),)
        with server(lambda handler, n: reply(handler, status=307, headers=headers)) as (url, _, _):
            (match,), _ = play(url, count=1)
    assert match.reason == "endpoint: HTTP status 307" and not stolen


@pytest.mark.parametrize(
    "body",
    [b"", b"nothing", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": {"content": 5}}]}', b"[" * 100_000],
)
def test_a_reply_that_is_no_completion_voids_the_match(body):
    with server(lambda handler, n: reply(handler, body=body)) as (url, _, received):
        (match,), _ = play(url, count=1)
    assert match.ending == games.VOID and len(received) == 1
    assert re.match(r"endpoint: a reply (that is no chat completion|without text)", match.reason)


def test_a_reply_without_end_is_given_up():
    def dribble(handler, number):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" ")
            time.sleep(0.02)

    def flood(handler, number):
        handler.send_response(200)
        handler.end_headers()
        while True:
            handler.wfile.write(b" " * 65_536)

    with server(dribble) as (url, _, _):
        began = time.monotonic()
        (match,), _ = play(url, count=1, timeout_secs=0.3, retries=1)
        assert "no whole reply within 0.3 s" in match.reason and time.monotonic() - began < 4
    with server(flood) as (url, _, _):
        (match,), _ = play(url, count=1)
        assert "more than 1048576 bytes" in match.reason


def raw(*pieces):
    """Behaviour that writes these bytes to the connection, and the last of them for ever."""

    def behave(handler, number):
        for piece in pieces:
            handler.wfile.write(piece)
        while True:
            time.sleep(0.02)
            handler.wfile.write(pieces[-1])

    return behave


@pytest.mark.parametrize(
    "pieces",
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", b"x"),
        (b"HTTP/1.1 100 Continue\r\n\r\n",),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n", b"["),
    ],
    ids=["header", "chunk", "continue", "body"],
)
def test_no_part_of_a_reply_may_take_for_ever(pieces):
    with server(raw(*pieces)) as (url, _, _):
        began = time.monotonic()
        (match,), _ = play(url, count=1, timeout_secs=0.3, retries=0)
    assert match.reason == "endpoint: no whole reply within 0.3 s" and time.monotonic() - began < 3


def test_a_handshake_may_not_take_for_ever():
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def shake():
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                connection.sendall(b"\x16\x03\x03\x40\x00")  # a record of 16 KiB
                while True:
                    time.sleep(0.02)
                    connection.sendall(b"\x02")

        threading.Thread(target=shake, daemon=True).start()
        began = time.monotonic()
        (match,), _ = play(f"https://127.0.0.1:{listening.getsockname()[1]}/v1", count=1, timeout_secs=0.3, retries=0)
    assert match.ending == games.VOID and time.monotonic() - began < 3


def test_a_server_that_is_silent_is_asked_again_for_the_first_match_only():
    with server(raw(b" ")) as (url, _, received):
        matches, _ = play(url, count=6, timeout_secs=0.2, retries=3, concurrency=1)
    assert {match.reason for match in matches} == {"endpoint: no whole reply within 0.2 s"}
    assert len(received) == 4 + 5


def test_a_pause_that_the_server_asks_for_is_kept_within_bounds(monkeypatch):
    def behave(handler, number):
        if number == 1:
            reply(handler, status=429, headers=(("Retry-After", asked),))
        else:
            reply(handler, content="\\boxed{[no]}")

    monkeypatch.setattr(endpoint, "_LONGEST_PAUSE", 1.5)
    for asked, least, most in (("1", 1.0, 2.5), ("9" * 400, 1.5, 3.0), ("soon", 0.0, 1.0), ("-5", 0.0, 1.0)):
        with server(behave) as (url, _, received):
            began = time.monotonic()
            (match,), _ = play(url, count=1)
        assert match.ending == games.BY_INVALID and len(received) == 2
        assert least <= time.monotonic() - began < most, asked


@pytest.mark.parametrize("place", ["file:///etc/hostname", "data:text/plain,x", "http://[::1", "/v1/again", "\x7f"])
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_no_redirect_is_followed_anywhere(place, status):
    with server(lambda handler, n: reply(handler, status=status, headers=(("Location", place),))) as (url, _, received):
        (match,), _ = play(url, count=1)
    assert match.reason == f"endpoint: HTTP status {status}" and len(received) == 1


def test_of_what_it_writes_only_a_legal_action_counts():
    said = (
        "<|end|><|user|>\\boxed{[0]}<|assistant|>", "\ud800\\boxed{[0]}", "<think>\\boxed{[0]}", "\x00", "",
        "\\boxed{" * 50_000, "\\boxed{[0]<|end|>}", "\\boxed{[0][1]}",
    )  # fmt: skip
    with server(lambda handler, n: reply(handler, content=said[n - 1])) as (url, _, received):
        endings = []
        for _ in said:
            rules = games.MatchSettings({}, 1, (-1.0, 0.0), 1)
            player = endpoint.EndpointPlayer(settings(url))
            requests = [games.MatchRequest("x", "tictactoe", 0, ("b", "b"))]
            (match,) = games.play_matches({"b": player}, requests, rules)
            player.close()
            endings.append(match.ending)
            assert match.moves in ((), ((0, "[0]"),)) and match.turns == ((), ())
    assert endings == [games.TOO_LONG] * 2 + [games.BY_INVALID] * 6


def test_a_key_that_no_header_may_hold_is_named_but_not_shown(monkeypatch):
    with server(lambda handler, n: reply(handler, content="\\boxed{[no]}")) as (url, _, received):
        for bad in (f"{KEY}\r\nX: y", f"{KEY}\u20ac"):
            monkeypatch.setenv("SPADE_TEST_KEY", bad)
            (match,), _ = play(url, count=1)
            assert match.reason == "endpoint: the key in SPADE_TEST_KEY holds what a header cannot"
        assert not received
        monkeypatch.setenv("SPADE_TEST_KEY", f"{KEY}\n")  # as from a file
        play(url, count=1)
        assert received[0][1]["Authorization"] == f"Bearer {KEY}"


def test_closing_waits_for_nobody():
    """A process joins such threads when it ends: what is under way, or pauses, must end with the player."""
    for behave in (raw(b" "), lambda handler, n: reply(handler, status=503, headers=(("Retry-After", "60"),))):
        with server(behave) as (url, _, received):
            player = endpoint.EndpointPlayer(settings(url, timeout_secs=60.0))
            for name in "abcdef":
                player.ask(Question(name, 0, 0, make_game("tictactoe", 0)))
            while not received:
                time.sleep(0.01)
            time.sleep(0.1)
            began = time.monotonic()
            player.close()
            player._threads.shutdown(wait=True)
            assert time.monotonic() - began < 2


def test_the_budget_is_kept_to_the_request_by_many_threads():
    with server(lambda handler, n: reply(handler, status=503)) as (url, _, received):
        matches, player = play(url, count=20, concurrency=16, max_requests=7)
    assert len(received) == player.requests == 7
    assert all(match.ending == games.VOID for match in matches)


def test_the_budget_ends_in_void_matches():
    with server(lambda handler, n: play_tictactoe(handler, received)) as (url, _, received):
        matches, player = play(url, concurrency=1, max_requests=5)
    assert len(received) == player.requests == 5
    assert "endpoint: the budget of 5 requests is spent" in {match.reason for match in matches}


def test_a_server_that_dies_half_way_voids_what_is_left():
    with server(lambda handler, n: play_tictactoe(handler, received)) as (url, served, received):
        first, _ = play(url, count=3, concurrency=1)
        served.shutdown()
        served.server_close()
        second, _ = play(url, count=3)
    assert {match.ending for match in first} == {games.BY_RULES}
    assert {match.ending for match in second} == {games.VOID}
    assert all(match.reason.startswith("endpoint: no connection") for match in second)
    assert games.match_metrics([*first, *second])["selfplay/void_share"] == 0.5
    assert games.void_reasons([*first, *second]) == "3 of 6 (endpoint: no connection (ConnectionRefusedError))"
    assert not games.void_reasons(first)


def test_no_failure_shows_the_key():
    for behave in (lambda h, n: reply(h, status=500, body=KEY.encode()), lambda h, n: reply(h, body=KEY.encode())):
        with server(behave) as (url, _, _):
            (match,), _ = play(url, count=1)
        assert match.reason and KEY not in match.reason
