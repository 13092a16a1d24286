"""Run the application: bind a socket before loading runs, and shut down cleanly on signals."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import socket
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from tsallis.errors import InputError

CONNECTIONS = 900  # maximum number of open connections; the usual limit is 1,024 for connections and files together
GRACE = 5  # maximum number of seconds to finish running answers at shutdown


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to a host and port.

    Raises:
        InputError: If the port is in use or not allowed, or the host is not on this machine.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        dual = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server(address, family=family, backlog=128, dualstack_ipv6=dual)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (while")[0]
        hint = "" if isinstance(error, socket.gaierror) else " (--port 0 uses a free port)"
        raise InputError(f"can't listen on {host}, port {port}: {reason}{hint}") from error


def url_of(opened: socket.socket) -> str:
    """Return the URL of the page. If the socket listens on all addresses, the URL also works on other machines."""
    host, port = opened.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            host = "127.0.0.1"  # used if there is no network
            probe.connect(("192.0.2.1", 9))  # selects the local address without sending anything
            host = probe.getsockname()[0]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def is_loopback(opened: socket.socket) -> bool:
    """Return whether a bound socket is reachable only from this machine."""
    return ipaddress.ip_address(opened.getsockname()[0].split("%")[0]).is_loopback


class Server(uvicorn.Server):
    """Server that shuts down cleanly on signals. The base class would raise the signal again."""

    def __init__(self, app: Starlette) -> None:
        config = uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            limit_concurrency=CONNECTIONS,
            timeout_graceful_shutdown=GRACE,
        )
        super().__init__(config)
        self._worker = app.state.worker

    def answer(self, opened: socket.socket) -> None:
        """Answer requests on a bound socket until SIGINT or SIGTERM."""
        asyncio.run(self.serve(sockets=[opened]))
        self._worker.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._worker.stop()  # otherwise unfinished requests would delay the shutdown
        await super().shutdown(sockets)
