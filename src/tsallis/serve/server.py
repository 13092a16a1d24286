"""Run the application: a socket that is bound before anything is loaded, and signals that end it in order."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from http import HTTPStatus
from types import FrameType
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tsallis.errors import InputError
from tsallis.serve.app import HEADERS

CONNECTIONS = 900  # at a time: of the 1,024 files that a process may usually open, some are for itself
GRACE = 5  # seconds that answers under way have once the server is to end


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens to no one yet.

    Raises:
        InputError: a port that is in use or not allowed, a host that is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"--host {host}: {error.strerror or error}") from error
    try:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        opened.listen(128)
    except OSError as error:
        opened.close()
        raise InputError(
            f"can't listen on {host}, port {port}: {error.strerror or error} (--port 0 takes a free one)"
        ) from error
    return opened


def url_of(opened: socket.socket) -> str:
    """Return the address of a bound socket's page."""
    host, port = opened.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(opened: socket.socket) -> bool:
    """Tell whether no other machine reaches a bound socket."""
    return ipaddress.ip_address(opened.getsockname()[0].split("%")[0]).is_loopback


class Connection(H11Protocol):
    """A connection that ends where its client is waited for too long, and whose refusals are JSON.

    The head of a request must come within the server's patience, counted from the opening of the connection or from
    the last answer; of the body the application takes care. As long may an answer wait for its client to read it.
    """

    _timer: asyncio.TimerHandle | None = None
    _since = 0.0  # the time from which a request is waited for

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()
        self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and not self.flow.write_paused and not self.transport.is_closing():
            self._stop_timer()  # the head of a request has come

    def on_response_complete(self) -> None:
        self._await_request()  # before the next one, which may have come already
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._is_between_requests():
            self._stop_timer()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "the request is no HTTP/1.1, or its head is too large")

    @property
    def _patience(self) -> float:
        application: Any = self.config.app
        seconds: float = application.state.worker.limits.patience
        return seconds

    def _is_between_requests(self) -> bool:
        """Tell whether no head of a request has come that is still to be answered."""
        return self.cycle is None or self.cycle.response_complete

    def _is_idle(self) -> bool:
        """Tell whether the client has something to do: to send the rest of a request, or to read an answer."""
        return self._is_between_requests() or self.cycle.more_body or self.flow.write_paused

    def _make_room(self) -> None:
        """Close the connections that have been idle for longest; where none is idle this one gets a refusal."""
        while len(self.connections) > CONNECTIONS:
            others = (c for c in self.connections if isinstance(c, Connection) and c is not self and c._is_idle())
            oldest = min(others, key=lambda connection: connection._since, default=None)
            if oldest is None:
                self.app = _refuse_more
                return
            oldest.transport.abort()
            self.connections.discard(oldest)  # at once: `connection_lost` is called later

    def _await_request(self) -> None:
        self._since = self.loop.time()
        self._start_timer()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self._patience, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _expire(self) -> None:
        """End the connection; say why where a part of a request has come."""
        if self._is_between_requests() and self.conn.trailing_data[0] and not self.transport.is_closing():
            self._refuse(408, f"the request did not come within {self._patience:g} seconds")
        else:
            self.transport.abort()  # not `close`, which would wait for what the client doesn't read

    def _refuse(self, status: int, message: str) -> None:
        """Send an error past h11, which may be in any state, and close the connection."""
        if self._is_between_requests() or not self.cycle.response_started:
            response = _error(status, message)
            lines = [b"HTTP/1.1 %d %s" % (status, HTTPStatus(status).phrase.encode())]
            lines += [b"%s: %s" % header for header in response.raw_headers]
            self.transport.write(b"\r\n".join([*lines, b"", bytes(response.body)]))
        if self.cycle is not None:
            self.cycle.disconnected = True  # so that no second answer follows
        self.transport.close()
        self._start_timer()  # for a client that doesn't read it


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status, {**HEADERS, "connection": "close"})


async def _refuse_more(scope: Scope, receive: Receive, send: Send) -> None:
    response = _error(503, f"{CONNECTIONS} requests are under way")
    response.headers["retry-after"] = "1"
    await response(scope, receive, send)


class Server(uvicorn.Server):
    """A server that signals end in order, where uvicorn's own would end as the signal has it.

    Args:
        app: the application.
        started: called once requests are answered.
    """

    def __init__(self, app: Starlette, started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)
        self._started, self._worker = started, app.state.worker
        self._error: Exception | None = None  # of `started`

    def answer(self, opened: socket.socket) -> None:
        """Answer requests on a bound socket until SIGINT or SIGTERM; raise what `started` raises."""
        asyncio.run(self.serve(sockets=[opened]))
        if self._error is not None:
            raise self._error

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.stop()  # or answers under way would be waited for
        await super().shutdown(sockets)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            try:
                self._started()
            except Exception as error:  # uvicorn would print a traceback
                self._error, self.should_exit = error, True
                await self.shutdown(sockets)
