"""Measure the requests per second of a server; each client sends its next request after every answer.

    python benchmarks/serve.py RUN SOURCES --clients 50 --seconds 60 --out benchmarks/results/serve-cpu.csv

The server runs in a separate process on the same machine, and shares its processors with the clients. SOURCES has one
source per line, as for `tsallis translate`. By default, the clients request translations with beam search; `--kinds`
selects other requests, which take turns. Every answer without status 200 counts as an error.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from common import Row, announce, machine, table, write

KINDS = ("translate", "tree", "exact", "sample", "suggest", "steps", "attention")


def bodies(kinds: list[str], sources: list[str]) -> Iterator[tuple[str, bytes]]:
    """Yield addresses and bodies of requests; the kinds and the sources take turns."""
    searches: dict[str, dict[str, Any]] = {
        "translate": {},
        "tree": {"tree": True},
        "exact": {"mode": "exact", "time_limit": 0.5},
        "sample": {"mode": "sample", "num_samples": 3},
    }
    for kind, source in zip(itertools.cycle(kinds), itertools.cycle(sources), strict=False):
        address = "translate" if kind in searches else kind
        content = {"sources": [source], **searches[kind]} if kind in searches else {"source": source}
        yield f"/api/{address}", json.dumps(content).encode()


class Times:
    """The seconds of every request, and the errors."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.errors: list[str] = []


async def client(port: int, requests: Iterator[tuple[str, bytes]], end: float, times: Times) -> None:
    """Send requests on one connection, one after another, until the end time."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    while (began := time.perf_counter()) < end:
        address, body = next(requests)
        head = f"POST {address} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", answer, re.I)
            content = await reader.readexactly(int(length[1]) if length else 0)
            if " 200 " not in answer[:20]:
                times.errors.append(f"{answer[:12]} {content[:200].decode()}")
        except (OSError, asyncio.IncompleteReadError) as error:
            times.errors.append(repr(error))
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        times.seconds.append(time.perf_counter() - began)
    writer.close()


async def measure(port: int, clients: int, seconds: float, kinds: list[str], sources: list[str]) -> tuple[Times, float]:
    """Return the times of all requests, and the seconds from start to end."""
    requests, times = bodies(kinds, sources), Times()
    warm = Times()
    await client(port, requests, time.perf_counter() + min(1.0, seconds), warm)
    began = time.perf_counter()
    await asyncio.gather(*(client(port, requests, began + seconds, times) for _ in range(clients)))
    return times, time.perf_counter() - began


def row_of(arguments: argparse.Namespace, times: Times, seconds: float, facts: dict[str, Any]) -> Row:
    quantiles = statistics.quantiles(times.seconds, n=100)
    return {
        "run": facts["name"],
        "model": facts["model"],
        "parameters": facts["parameters"],
        "output": facts["arguments"].get("output", ""),
        "beam": facts["search"]["beam_size"],
        "kinds": " ".join(arguments.kinds),
        "clients": arguments.clients,
        "seconds": seconds,
        "requests": len(times.seconds),
        "errors": len(times.errors),
        "p50_ms": 1000 * quantiles[49],
        "p95_ms": 1000 * quantiles[94],
        "max_ms": 1000 * max(times.seconds),
        "requests_per_second": len(times.seconds) / seconds,
        "shared": "yes" if arguments.shared else "no",
        "starlette": version("starlette"),
        "uvicorn": version("uvicorn"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["translate"])
    parser.add_argument("--shared", action="store_true", help="record in the results that the machine is busy")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    announce()
    sources = arguments.sources.read_text(encoding="utf-8").splitlines()
    command = [sys.executable, "-m", "tsallis", "serve", str(arguments.run), "--port", "0", "--device", "cpu"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(arguments.threads)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        address = re.search(r"http://127\.0\.0\.1:(\d+)/", server.stdout.readline())
        if address is None:
            raise SystemExit("the server did not start")
        try:
            facts = asyncio.run(read_facts(int(address[1])))
            work = measure(int(address[1]), arguments.clients, arguments.seconds, arguments.kinds, sources)
            times, seconds = asyncio.run(work)
        finally:
            server.terminate()
    rows = [row_of(arguments, times, seconds, facts) | {"backend": "", **machine()}]
    print(table(rows, ["run", "clients", "requests", "errors", "p50_ms", "p95_ms", "max_ms", "requests_per_second"]))
    for message, count in sorted({m: times.errors.count(m) for m in times.errors}.items()):
        print(f"{count} x {message}")
    write(arguments.out, rows)
    raise SystemExit(bool(times.errors))


async def read_facts(port: int) -> dict[str, Any]:
    """Return the server's description of its run."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    content = await reader.read()
    writer.close()
    facts: dict[str, Any] = json.loads(content.split(b"\r\n\r\n", 1)[1])["runs"][0]
    return facts


if __name__ == "__main__":
    main()
