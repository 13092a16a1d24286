"""A faulty test server (it hangs up, ignores ranges, sends wrong headers), and archives for it to serve."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tsallis.toolkit.datasets.download import Part, SourceFile

CONTENT = bytes(range(256)) * 1000


@dataclass
class Server:
    """The behaviour of the server, and the requests that it received."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file": CONTENT})
    ranges: bool = True
    cut: int | None = None  # bytes after which it hangs up
    status: int | None = None
    length: bool = True  # whether it sends Content-Length
    shift: int = 0  # offset of the sent range from the requested one
    version: str | None = None  # sent as ETag; ranges of other versions are ignored
    pause: float = 0.0  # seconds before it sends a file
    requests: list[tuple[str, str | None]] = field(default_factory=list)

    def file(self, *paths: str, content: bytes = CONTENT) -> SourceFile:
        urls = tuple(self.address + path for path in paths or ("/file",))
        return SourceFile("file", urls, len(content), hashlib.sha256(content).hexdigest())


@contextmanager
def serve() -> Iterator[Server]:
    """Run a server on this machine while the context is open."""
    behaviour = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            position = self.headers.get("Range")
            behaviour.requests.append((self.path, position))
            content = behaviour.files.get(self.path)
            if behaviour.status or content is None:
                self.send_error(behaviour.status or 404)
                return
            start = 0
            is_current = self.headers.get("If-Range") in (None, behaviour.version)
            if position and behaviour.ranges and is_current:
                start = int(re.fullmatch(r"bytes=(\d+)-", position)[1]) + behaviour.shift
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if behaviour.version:
                self.send_header("ETag", behaviour.version)
            if behaviour.length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            time.sleep(behaviour.pause)
            body = content[start:]
            self.wfile.write(body if behaviour.cut is None else body[: behaviour.cut])

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        behaviour.address = f"http://127.0.0.1:{http.server_port}"
        try:
            yield behaviour
        finally:
            http.shutdown()
            thread.join()


def tar(members: dict[str, bytes], mode: str = "w:gz", link: str | None = None) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def packed_in(server: Server, packing: str, content: bytes, member: str | None = None, **options: object) -> Part:
    name = f"archive{len(server.files)}"
    server.files[f"/{name}"] = content
    return Part(SourceFile(name, (f"{server.address}/{name}",)), packing, member, **options)
