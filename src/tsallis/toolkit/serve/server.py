"""Run the application: a socket that is bound before anything is loaded, and signals that end it in order."""

from __future__ import annotations

import asyncio
import ipaddress
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from tsallis.errors import InputError

CONNECTIONS = 900  # open at a time: a process may usually open 1,024 files, and needs some itself
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


class Server(uvicorn.Server):
    """A server that signals end in order, where uvicorn's own would end as the signal has it.

    Args:
        app: the application.
        started: called once requests are answered.
    """

    def __init__(self, app: Starlette, started: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="on",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)
        self._started = started
        self._worker = app.state.worker

    def answer(self, opened: socket.socket) -> None:
        """Answer requests on a bound socket until SIGINT or SIGTERM; raise what `started` raises."""
        asyncio.run(self.serve(sockets=[opened]))

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
            except Exception:
                await self.shutdown(sockets)  # or uvicorn would print a traceback
                raise
