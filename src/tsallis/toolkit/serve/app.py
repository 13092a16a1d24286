"""The ASGI application: URLs, response headers and errors."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

import tsallis
from tsallis.errors import InputError, OptionError, describe
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.limits import Limits, Refusal
from tsallis.toolkit.serve.page import FILES, page_file
from tsallis.toolkit.serve.requests import QUESTIONS, SearchRequest, parse_request
from tsallis.toolkit.serve.requests import Request as Query
from tsallis.toolkit.serve.worker import Job, Worker

CLIENT_CLOSED_REQUEST = 499  # status of a response to a closed connection
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}


def build_app(runs: Sequence[ServedRun], limits: Limits, hosts: Collection[str] = ()) -> Starlette:
    """Return the application that serves runs.

    Args:
        runs: Runs with distinct names; the first is the default of requests.
        limits: Limits of requests.
        hosts: Host names of the server, in addition to IP addresses and `localhost`.

    Raises:
        InputError: If a host name contains a slash, as addresses do.
    """
    if (address := next((host for host in hosts if "/" in host), None)) is not None:
        raise InputError(f"a host name, such as lab.example.org, must not contain '/', got {describe(address)}")
    worker = Worker(limits)
    server = _Api({run.name: run for run in runs}, limits, worker)
    routes = [
        *(Route(path, _file_handler(path)) for path in FILES),
        Route("/api/health", server.health),
        Route("/api/runs", server.list_runs),
        *(Route(f"/api/{name}", server.answer(name, schema), methods=["POST"]) for name, schema in QUESTIONS.items()),
    ]
    handlers: Any = {Refusal: _refuse, InputError: _refuse_input, ClientDisconnect: _client_disconnected}
    handlers |= {HTTPException: _http_error, Exception: _server_error}
    middleware = [Middleware(_KnownHosts, hosts={"localhost", *map(str.lower, hosts)})]
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=handlers)
    app.router.redirect_slashes = False  # a redirect would name this server, not the reverse proxy before it
    app.state.worker = worker
    return app


class _Api:
    """Handlers of the URLs below `/api`."""

    def __init__(self, runs: dict[str, ServedRun], limits: Limits, worker: Worker) -> None:
        self.runs, self.limits, self.worker = runs, limits, worker

    async def health(self, _: Request) -> Response:
        content = {
            "status": "ok",
            "version": tsallis.__version__,
            "runs": list(self.runs),
            "waiting": self.worker.waiting,
        }
        return _json(content)

    async def list_runs(self, _: Request) -> Response:
        return _json(
            {"version": tsallis.__version__, "limits": vars(self.limits), "runs": [r.facts for r in self.runs.values()]}
        )

    def answer(self, name: str, schema: type[Query]) -> Callable[[Request], Any]:
        """Return a handler that parses a request by `schema` and passes the result to the method `name` of the run."""

        async def answer(request: Request) -> Response:
            try:
                query = parse_request(await self._body(request), schema, self.limits)
                run = self._find_run(query.run)
                key, size = None, 1
                if isinstance(query, SearchRequest):
                    key, size = run.key(query), len(query.sources)
                job = self.worker.submit(getattr(run, name), key, query, size)
                return await _wait_for_answer(job, request, self.limits.patience + self.limits.seconds)
            except asyncio.CancelledError:  # the request was not finished in time when the server was stopped
                raise Refusal(503, "the server is being shut down") from None

        return answer

    def _find_run(self, name: str | None) -> ServedRun:
        run = next(iter(self.runs.values())) if name is None else self.runs.get(name)
        if run is None:
            raise Refusal(404, f"run must be one of {', '.join(self.runs)}, got {name[:60]!r}")  # type: ignore[index]
        return run

    async def _body(self, request: Request) -> bytes:
        """Return the body of a JSON request.

        Raises:
            Refusal: If the content type is not JSON, or the body is too large or takes too long.
        """
        if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
            raise Refusal(415, "the content type must be application/json")
        try:
            return await asyncio.wait_for(self._read(request), self.limits.patience)
        except asyncio.TimeoutError:
            raise Refusal(408, f"the request was not complete within {self.limits.patience:g} seconds") from None

    async def _read(self, request: Request) -> bytes:
        content_length, body = request.headers.get("content-length", ""), bytearray()
        too_large = Refusal(413, f"the request must have at most {self.limits.body} bytes, got more")
        if content_length.isdecimal() and int(content_length[:20]) > self.limits.body:
            raise too_large
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.limits.body:
                raise too_large
        return bytes(body)


async def _wait_for_answer(job: Job, request: Request, seconds: float) -> Response:
    """Return the answer of a job; cancel the job if the client disconnects.

    Raises:
        Refusal: If there is no answer in time.
    """
    answer = asyncio.wrap_future(job.answer)
    disconnection = asyncio.ensure_future(_wait_for_disconnect(request))
    try:
        await asyncio.wait({answer, disconnection}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return _json(answer.result())
        if disconnection.done():
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        raise Refusal(503, f"there was no answer within {seconds:g} seconds")
    finally:
        disconnection.cancel()
        if not answer.done():
            answer.cancel()
            job.cancel()


async def _wait_for_disconnect(request: Request) -> None:
    """Wait until the client disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _file_handler(path: str) -> Callable[[Request], Any]:
    async def file(_: Request) -> Response:
        content, kind = page_file(path)
        return Response(content, media_type=kind, headers={**HEADERS, "cache-control": "no-cache"})

    return file


def _json(content: Any, status: int = 200) -> Response:
    text = json.dumps(content, ensure_ascii=False, allow_nan=False)
    return Response(text, status, HEADERS, "application/json")


def _error(status: int, message: str) -> Response:
    return _json({"error": message}, status)


async def _refuse(_: Request, refusal: Any) -> Response:
    return _error(refusal.status, refusal.message)


async def _refuse_input(_: Request, error: Exception) -> Response:
    return _error(400, error.reason if isinstance(error, OptionError) else str(error))


async def _client_disconnected(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _http_error(request: Request, error: Any) -> Response:
    messages = {404: "this address does not exist", 405: f"this address does not support {request.method}"}
    response = _error(error.status_code, messages.get(error.status_code, error.detail))
    response.headers.update(error.headers or {})
    return response


async def _server_error(_: Request, __: Exception) -> Response:
    return _error(500, "internal server error; see the log of the server")


class _KnownHosts:
    """Middleware that rejects requests with an unknown host or from other sites.

    Another site could point its own host name at this machine (DNS rebinding), so only IP addresses and known names are
    accepted. Browsers mark requests from pages of other sites with the header `origin`; such requests are rejected.
    """

    def __init__(self, app: ASGIApp, hosts: set[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (message := self._fault(Request(scope))) is not None:
            await _error(403, message)(scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _fault(self, request: Request) -> str | None:
        host, origin = request.headers.get("host", ""), request.headers.get("origin")
        if not self._is_known(host):
            return "this host name is not allowed: use an IP address, or start the server with --allow-host NAME"
        if origin is not None and origin.lower().partition("://")[2] != host.lower():
            return (
                f"requests from pages of other sites are not allowed: the request is for {describe(host)}, its page is "
                f"from {describe(origin)} (a reverse proxy must keep the header Host)"
            )
        return None

    def _is_known(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self.hosts or bool(ipaddress.ip_address(name))
        except ValueError:
            return False
