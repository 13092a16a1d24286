"""The application over HTTP: rejected requests, headers, hosts, simultaneous clients and disconnects."""

from __future__ import annotations

import asyncio
import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from tsallis.toolkit.serve.answers import ServedRun
from tsallis.toolkit.serve.app import HEADERS, POLICY, build_app
from tsallis.toolkit.serve.limits import Limits
from tsallis.toolkit.serve.page import FILES

from .conftest import LINE, Serve, Slow, head, raw


def test_every_route_responds(serve: Serve) -> None:
    client = serve()
    status, content, headers = client.send("GET", "/api/health")
    assert status == 200 and content["status"] == "ok" and content["runs"] == ["verbs"] and content["waiting"] == 0
    assert client.send("GET", "/api/runs")[1]["runs"][0]["columns"] == ["source", "features"]
    for name in ("translate", "prove", "suggest", "steps", "attention"):
        body = {"sources": [LINE]} if name in ("translate", "prove") else {"source": LINE}
        body |= {"never": "[0-9]"} if name == "prove" else {}
        status, content = client.post(name, body)
        assert status == 200 and content["run"] == "verbs", content
    for path, (kind, _) in FILES.items():
        status, text, headers = client.send("GET", path)
        assert status == 200 and headers["content-type"].startswith(kind) and len(text) > 500
        assert headers["content-security-policy"] == POLICY and headers["cache-control"] == "no-cache"


def test_the_page_loads_only_its_own_files(serve: Serve) -> None:
    client = serve()
    page = client.send("GET", "/")[1]
    linked = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert {f"/{name}" for name in linked if not name.startswith(("#", "data:"))} == set(FILES) - {"/"}
    for path in FILES:
        text = client.send("GET", path)[1].replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text and "https:" not in text and "innerHTML" not in text and "eval(" not in text
    assert "unsafe" not in POLICY


def test_translate_responses_match_the_run(serve: Serve, served: ServedRun) -> None:
    from tsallis.toolkit.serve.requests import TranslateRequest

    request = {"sources": [LINE], "n_best": 3, "tree": True}
    (expected,) = served.translate([TranslateRequest(**request)], lambda: None)
    assert serve().post("translate", request) == (200, json.loads(json.dumps(expected)))


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status", "message"),
    [
        ("GET", "/nothing", None, {}, 404, "this address does not exist"),
        ("GET", "/../../etc/passwd", None, {}, 404, "this address does not exist"),
        ("POST", "/api/translate/", {"sources": [LINE]}, {}, 404, "this address does not exist"),
        ("GET", "/api/health/", None, {}, 404, "this address does not exist"),
        ("GET", "/api/translate", None, {}, 405, "this address does not support GET"),
        ("POST", "/api/health", {}, {}, 405, "this address does not support POST"),
        ("POST", "/api/translate", b"{}", {"content_type": "text/plain"}, 415, "application/json"),
        ("POST", "/api/translate", b"{}", {"content_type": ""}, 415, "application/json"),
        ("POST", "/api/translate", b"", {}, 400, "not JSON"),
        ("POST", "/api/translate", {"sources": ["scan"]}, {}, 400, "sources:1: expected source<TAB>features"),
        ("POST", "/api/translate", {"sources": ["a" * 2049]}, {}, 400, "at most 2048 characters"),
        ("POST", "/api/translate", {"sources": [f"{'a' * 300}\tV"]}, {}, 400, "expected at most 256 symbols"),
        ("POST", "/api/translate", b" " * 70_000, {}, 413, "at most 65536 bytes"),
        ("POST", "/api/translate", b" ", {"content-length": "70000"}, 413, "at most 65536 bytes"),
        ("POST", "/api/translate", {"sources": [LINE], "pattern": "(a"}, {}, 400, "'(a'"),
        ("POST", "/api/translate", {"sources": [LINE], "pattern": "a(?=b)"}, {}, 400, "(?=b)"),
        ("POST", "/api/translate", {"sources": [LINE], "pattern": 3}, {}, 400, "pattern: input should be a"),
        ("POST", "/api/translate", {"sources": [LINE], "run": "x"}, {}, 404, "run must be one of verbs"),
        ("GET", "/api/health", None, {"host": "attacker.example"}, 403, "host name is not allowed"),
        ("GET", "/", None, {"host": "attacker.example:80"}, 403, "host name is not allowed"),
        ("GET", "/api/health", None, {"host": "127.0.0.1.attacker.example"}, 403, "host name is not allowed"),
        ("GET", "/api/health", None, {"host": ""}, 403, "host name is not allowed"),
        ("GET", "/api/health", None, {"host": "[::1"}, 403, "host name is not allowed"),
        ("POST", "/api/translate", {"sources": [LINE]}, {"origin": "http://attacker.example"}, 403, "other sites"),
        ("POST", "/api/translate", {"sources": [LINE]}, {"origin": "null"}, 403, "its page is from 'null'"),
    ],
)
def test_rejected_requests_return_an_error_message(
    serve: Serve, method: str, path: str, body: Any, headers: dict[str, str], status: int, message: str
) -> None:
    got, content, answer = serve().send(method, path, body, **headers)
    assert (got, list(content)) == (status, ["error"]) and message in content["error"]
    assert {name: answer[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1", "[::1]:8000", "10.0.0.7", "models.example"])
def test_known_hosts_are_answered(serve: Serve, host: str) -> None:
    client = serve()
    assert client.send("GET", "/api/health", host=host, origin=f"http://{host}")[0] == 200


def test_pages_never_contain_user_input(serve: Serve) -> None:
    client = serve()
    for path in ("/<script>alert(1)</script>", "/?source=<script>alert(1)</script>"):
        assert "alert" not in str(client.send("GET", path)[1])
    status, content, headers = client.send("POST", "/api/translate", {"sources": ["<script>alert(1)</script>"]})
    assert status == 400 and headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff" and "<script>" in content["error"]  # as text inside JSON


def test_simultaneous_clients_get_the_same_answers(serve: Serve) -> None:
    client = serve()
    lines = [f"{'abcdefgh'[i % 8]}{'lkt'[i % 3]}e\tV;PST" for i in range(24)]
    alone = [client.post("translate", {"sources": [line]}) for line in lines]
    with ThreadPoolExecutor(24) as pool:
        together = list(pool.map(lambda line: client.post("translate", {"sources": [line]}), lines))
    for (status, one), (_, other) in zip(together, alone, strict=True):
        assert status == 200
        best = [answer["answers"][0]["hypotheses"][:1] for answer in (one, other)]
        assert [h["text"] for h in best[0]] == [h["text"] for h in best[1]]


def test_disconnecting_cancels_the_request(serve: Serve, slow: Slow) -> None:
    client = serve(slow)
    body = json.dumps({"sources": [LINE]}).encode()
    began = time.monotonic()
    connection = raw(client, head(len(body)) + body)
    assert slow.entered.wait(10)
    connection.close()
    assert slow.ended.wait(10) and time.monotonic() - began < 5
    assert client.send("GET", "/api/health")[0] == 200


def test_unfinished_requests_return_503_at_shutdown(served: ServedRun) -> None:
    """The server cancels the handlers of requests that are not finished in time."""
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/translate", "headers": headers}
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def cancel() -> None:
        app = build_app([served], Limits())
        handler = asyncio.ensure_future(app(scope, asyncio.Event().wait, send))
        await asyncio.sleep(0.05)
        handler.cancel()
        await handler
        app.state.worker.close()

    asyncio.run(cancel())
    assert sent[0]["status"] == 503 and b"shut down" in sent[1]["body"]


def test_queued_requests_time_out_with_503(serve: Serve, slow: Slow) -> None:
    client = serve(slow, patience=0.1, seconds=0.4)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "translate", {"sources": [LINE]})
        assert slow.entered.wait(10)
        status, content, _ = client.send("POST", "/api/translate", {"sources": [LINE], "n_best": 2})
        assert status == 503 and "no answer within 0.5 seconds" in content["error"]
        assert first.result()[0] == 503


def test_slow_searches_return_503(serve: Serve, slow: Slow) -> None:
    status, content = serve(slow, seconds=0.2).post("translate", {"sources": [LINE]})
    assert status == 503 and "more than 0.2 seconds" in content["error"]


def test_internal_errors_have_no_details(serve: Serve, served: ServedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> None:
        raise RuntimeError("secret")

    client = serve()
    monkeypatch.setattr(type(served.run.model), "encode", fail)
    status, content = client.post("translate", {"sources": [LINE]})
    assert status == 500 and "secret" not in content["error"]
    monkeypatch.undo()
    assert client.post("translate", {"sources": [LINE]})[0] == 200


def test_requests_select_a_run_by_name(serve: Serve, served: ServedRun) -> None:
    client = serve(served, replace(served, name="more verbs"))
    assert client.post("translate", {"sources": [LINE]})[1]["run"] == "verbs"
    assert client.post("translate", {"sources": [LINE], "run": "more verbs"})[1]["run"] == "more verbs"
