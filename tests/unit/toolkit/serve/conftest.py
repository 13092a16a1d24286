"""Fixtures: a small served run, and a server in a thread with its own port."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from small_run import train
from tsallis.search import SearchOptions
from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.app import build_app
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.server import Server, bind
from tsallis.toolkit.serve.worker import Check
from tsallis.toolkit.tasks.registry import task_of
from tsallis.toolkit.training import Run, load_run

LINE = "scan\tV;PST"


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("served") / "verbs"
    train(folder)
    return load_run(folder)


@pytest.fixture
def served(run: Run) -> ServedRun:
    return ServedRun("verbs", run, task_of(run.task), SearchOptions(beam_size=3), Limits())


class Client:
    def __init__(self, port: int) -> None:
        self.port = port

    def send(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        """Return status, content and headers of the answer. Send bytes unchanged and other bodies as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            kind = {"content-type": "application/json"} if body is not None else {}
            blob = body if isinstance(body, bytes | None) else json.dumps(body).encode()
            connection.request(method, path, blob, {**kind, **{k.replace("_", "-"): v for k, v in headers.items()}})
            answer = connection.getresponse()
            text, found = answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, json.loads(text) if found["content-type"] == "application/json" else text, found

    def post(self, name: str, body: Any, **headers: str) -> tuple[int, Any]:
        return self.send("POST", f"/api/{name}", body, **headers)[:2]


Serve = Callable[..., Client]


@pytest.fixture
def serve(served: ServedRun) -> Iterator[Serve]:
    """Yield a function that starts servers, by default with the small run. Stop them after the test."""
    with contextlib.ExitStack() as stack:

        def start(*runs: ServedRun, **limits: Any) -> Client:
            own = Limits(**limits)
            app = build_app([replace(one, limits=own) for one in runs or (served,)], own, ["models.example"])
            opened = stack.enter_context(bind("127.0.0.1", 0))
            port = opened.getsockname()[1]
            server = Server(app)
            thread = threading.Thread(target=server.answer, args=(opened,))
            thread.start()

            def stop() -> None:
                server.should_exit = True
                thread.join(30)
                assert not thread.is_alive()

            stack.callback(stop)
            return Client(port)

        yield start


class Slow(ServedRun):
    """A run whose searches take a second unless they are cancelled."""

    entered = threading.Event()
    ended = threading.Event()

    def translate(self, requests: Sequence[Any], check: Check) -> list[Any]:
        self.entered.set()
        try:
            for _ in range(100):
                time.sleep(0.01)
                check()
            return super().translate(requests, check)
        finally:
            self.ended.set()


@pytest.fixture
def slow(served: ServedRun) -> Slow:
    Slow.entered.clear()
    Slow.ended.clear()
    names = ("name", "run", "task", "search", "limits")
    return Slow(**{name: getattr(served, name) for name in names})


def no_check() -> None:
    pass


def sources(served: ServedRun, *lines: str) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """Return the model of a run, and the lines as arguments of its search."""
    batch = served.task.read(lines, "here", served.run, False).corpus.batch(range(len(lines)))
    return served.run.model, batch.src, batch.src_lengths


def raw(client: Client, blob: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", client.port), timeout=30)
    connection.sendall(blob)
    return connection


def head(length: int) -> bytes:
    first = b"POST /api/translate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return first + b"Content-Length: %d\r\n\r\n" % length
