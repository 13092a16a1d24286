"""Connections that wait for their clients: silent ones, slow ones, more than are open at a time."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tsallis.serve import server
from tsallis.serve.app import HEADERS
from tsallis.serve.page import FILES

from .conftest import LINE, Client, Serve, Slow, head, raw

HEALTH = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
PARTS = (b"", b"GET /api/health HTT", b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n")


def receive(connection: socket.socket) -> bytes:
    """Return everything that comes until the server closes the connection."""
    blob = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(1 << 16):
            blob += chunk
    return blob


def answer(blob: bytes) -> tuple[int, dict[str, str], Any]:
    """Return status, headers and content of the last answer."""
    top, _, body = blob[blob.rindex(b"HTTP/1.1 ") :].partition(b"\r\n\r\n")
    status, *lines = top.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["content-length"]) == len(body)
    return int(status.split()[1]), headers, json.loads(body)


def next_status(connection: socket.socket) -> int:
    """Read one answer whole, and return its status."""
    response = http.client.HTTPResponse(connection)
    response.begin()
    response.read()
    return response.status


def check_refusal(blob: bytes, status: int, message: str) -> None:
    number, headers, content = answer(blob)
    assert number == status and list(content) == ["error"] and message in content["error"]
    assert headers["content-type"] == "application/json" and headers["connection"] == "close"
    assert {name: headers[name] for name in HEADERS} == HEADERS


@contextlib.contextmanager
def sockets(client: Client, blobs: list[bytes]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(raw(client, blob))) for blob in blobs]


@pytest.mark.parametrize("part", PARTS)
def test_a_connection_without_a_request_is_closed(serve: Serve, part: bytes) -> None:
    client = serve(patience=0.3)
    began = time.monotonic()
    with sockets(client, [part]) as (connection,):
        blob = receive(connection)
    assert 0.2 < time.monotonic() - began < 5
    if part:
        check_refusal(blob, 408, "within 0.3 seconds")
    else:
        assert not blob  # a browser may have opened it for later


def test_bytes_that_trickle_do_not_keep_a_connection_open(serve: Serve) -> None:
    client = serve(patience=0.5)
    for begin in (HEALTH[:10], HEALTH.replace(b"\r\n\r\n", b"\r\nContent-Length: 1000\r\n\r\n"), HEALTH):
        began = time.monotonic()
        with sockets(client, [begin]) as (connection,), contextlib.suppress(ConnectionError):
            while time.monotonic() - began < 10:
                time.sleep(0.05)
                connection.sendall(b"x")
        assert 0.4 < time.monotonic() - began < 5


def test_a_kept_connection_has_its_patience_anew(serve: Serve) -> None:
    client = serve(patience=1.0)
    with sockets(client, [HEALTH]) as (connection,):
        assert next_status(connection) == 200
        time.sleep(0.7)
        connection.sendall(HEALTH)
        assert next_status(connection) == 200
        time.sleep(0.7)
        connection.sendall(HEALTH + HEALTH[:9])
        blob = receive(connection)
        assert blob.startswith(b"HTTP/1.1 200")
        check_refusal(blob, 408, "within 1 seconds")


def test_an_answer_that_nobody_reads_is_given_up(serve: Serve) -> None:
    client, count = serve(patience=0.5), 3000
    path = max(FILES, key=lambda path: len(client.send("GET", path)[1]))
    text = client.send("GET", path)[1]
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.settimeout(5)
        connection.connect(("127.0.0.1", client.port))
        with contextlib.suppress(ConnectionError):
            connection.sendall(request * count)  # returns, or breaks off, once the server has closed the connection
            time.sleep(2)
        assert len(receive(connection)) < count * len(text.encode())


@pytest.mark.parametrize("part", [*PARTS, head(100) + b'{"sources"', HEALTH])
def test_connections_without_a_request_make_room_for_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, part: bytes
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    client = serve()
    with sockets(client, [part] * 12) as idle:
        for _ in range(3):
            assert client.send("GET", "/api/health")[0] == 200
        assert client.post("translate", {"sources": [LINE]})[0] == 200
        receive(idle[0])  # the oldest has been closed
        idle[-1].setblocking(False)  # the latest is open, with an answer or without
        if part == HEALTH:
            assert idle[-1].recv(1 << 16)
        else:
            with pytest.raises(BlockingIOError):
                idle[-1].recv(1)


def test_more_requests_than_connections_are_refused_with_a_time(
    serve: Serve, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 2)
    client = serve(slow)
    blobs = [json.dumps({"sources": [LINE], "nbest": n + 1}).encode() for n in range(2)]
    with sockets(client, [head(len(blob)) + blob for blob in blobs]) as under_way:
        assert slow.entered.wait(10)
        time.sleep(0.2)  # until the second is in the queue
        with sockets(client, [HEALTH]) as (connection,):
            blob = receive(connection)
        check_refusal(blob, 503, "2 requests are under way")
        assert answer(blob)[1]["retry-after"] == "1"
        assert all(connection.recv(12) == b"HTTP/1.1 200" for connection in under_way)


@pytest.mark.parametrize(
    "blob", [b"HELO\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000]
)
def test_what_is_no_request_is_refused_as_json(serve: Serve, blob: bytes) -> None:
    client = serve()
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    with contextlib.closing(connection), contextlib.suppress(ConnectionError):
        connection.sendall(blob)
        received = connection.recv(1 << 16)
        check_refusal(received, 400, "no HTTP/1.1, or its head is too large")
    assert client.send("GET", "/api/health")[0] == 200


def test_a_body_that_breaks_the_protocol_is_refused_once(serve: Serve) -> None:
    chunked = head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
    with sockets(serve(), [chunked]) as (connection,):
        time.sleep(0.1)
        connection.sendall(b"no length\r\n")
        blob = receive(connection)
    check_refusal(blob, 400, "no HTTP/1.1")
    assert blob.count(b"HTTP/1.1 ") == 1
