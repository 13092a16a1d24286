"""Abuse of a server: invalid HTTP, slow or silent clients, and too many connections."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from tsallis.toolkit.serve import server
from tsallis.toolkit.serve.page import FILES

from .conftest import LINE, Client, Serve, head, raw

HEALTH = b"GET /api/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
UNFINISHED = (b"", HEALTH[:10], HEALTH[:-2], head(100), head(100) + b'{"sources"')


@contextlib.contextmanager
def sockets(client: Client, blobs: list[bytes]) -> Iterator[list[socket.socket]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(raw(client, blob))) for blob in blobs]


@pytest.fixture
def outliving() -> Iterator[contextlib.ExitStack]:
    """Close connections after the server has stopped; request this fixture before `serve`."""
    with contextlib.ExitStack() as stack:
        yield stack


def test_unfinished_requests_do_not_block_other_clients(outliving: contextlib.ExitStack, serve: Serve) -> None:
    client = serve()
    blobs = [blob for blob in UNFINISHED for _ in range(10)]
    connections = [outliving.enter_context(contextlib.closing(raw(client, blob))) for blob in blobs]
    for _ in range(3):
        assert client.post("translate", {"sources": [LINE]})[0] == 200
        for connection in connections:
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")


def test_slow_request_bodies_time_out_with_408(serve: Serve) -> None:
    began = time.monotonic()
    with sockets(serve(patience=0.3), [head(1000)]) as (connection,):
        connection.sendall(b"x")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 408")
    assert 0.2 < time.monotonic() - began < 10


def test_unread_responses_do_not_block_other_clients(outliving: contextlib.ExitStack, serve: Serve) -> None:
    client = serve()
    path = max(FILES, key=lambda path: len(client.send("GET", path)[1]))
    connection = outliving.enter_context(socket.socket())
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    connection.settimeout(1)
    connection.connect(("127.0.0.1", client.port))
    with pytest.raises(OSError):  # the server stops reading while nobody reads its answers
        connection.sendall(HEALTH.replace(b"/api/health", path.encode()) * 100_000)
    assert client.post("translate", {"sources": [LINE]})[0] == 200


def test_connections_over_the_limit_are_rejected(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTIONS", 8)
    client = serve()
    with sockets(client, [b""] * 8), sockets(client, [HEALTH]) as (refused,):
        assert refused.recv(1 << 16).startswith(b"HTTP/1.1 503")
    time.sleep(0.2)  # wait until the server notices the closed connections
    assert client.send("GET", "/api/health")[0] == 200


@pytest.mark.parametrize(
    "blob",
    [
        b"HELO\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",  # sent by a browser that expects TLS
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA: " + b"a" * 200_000,
        head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked") + b"no length\r\n",
    ],
    ids=["no HTTP", "TLS", "no host", "large head", "wrong chunk"],
)
def test_invalid_requests_are_rejected(serve: Serve, blob: bytes) -> None:
    client = serve()
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    with contextlib.closing(connection), contextlib.suppress(ConnectionError):
        connection.sendall(blob + b"\r\n")
        answer = connection.recv(1 << 16)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 400")
    assert client.send("GET", "/api/health")[0] == 200
