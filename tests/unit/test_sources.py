"""Downloads: resumed, checked, never half there."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from tsallis.data.sources import SOURCES, SourceFile, fetch, get
from tsallis.errors import InputError

CONTENT = bytes(range(256)) * 2000


class Server(BaseHTTPRequestHandler):
    ranges = True
    cut_after: int | None = None
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        cls = type(self)
        cls.asked.append(self.headers.get("Range"))
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path == "/broken":
            self.send_error(503)
            return
        start = 0
        if cls.ranges and self.headers.get("Range"):
            start = int(self.headers["Range"].removeprefix("bytes=").rstrip("-"))
        body = CONTENT[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        cut, cls.cut_after = cls.cut_after, None
        self.wfile.write(body if cut is None else body[:cut])
        if cut is not None:
            self.wfile.flush()
            self.connection.close()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.ranges, Server.cut_after, Server.asked = True, None, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{http.server_port}"
        http.shutdown()


def known(*urls: str, content: bytes = CONTENT) -> SourceFile:
    return SourceFile("file", urls, len(content), hashlib.sha256(content).hexdigest())


def test_a_file_arrives_whole_and_is_not_fetched_twice(server: str, tmp_path: Path) -> None:
    path = fetch(known(f"{server}/file"), tmp_path / "deep" / "file")
    assert path.read_bytes() == CONTENT
    fetch(known(f"{server}/file"), path)
    assert len(Server.asked) == 1 and [p.name for p in path.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("ranges", [True, False])
def test_an_interrupted_download_goes_on(server: str, tmp_path: Path, ranges: bool) -> None:
    Server.ranges, Server.cut_after = ranges, 100_000
    path = tmp_path / "file"
    with pytest.raises(InputError, match="goes on from there"):
        fetch(known(f"{server}/file"), path)
    part = tmp_path / "file.part"
    assert not path.exists() and part.exists()
    kept = part.stat().st_size
    assert fetch(known(f"{server}/file"), path).read_bytes() == CONTENT
    assert not part.exists()
    assert Server.asked[1] == (f"bytes={kept}-" if kept else None)


def test_other_content_is_thrown_away(server: str, tmp_path: Path) -> None:
    other = known(f"{server}/file", content=b"\0" * len(CONTENT))
    with pytest.raises(InputError, match="SHA-256"):
        fetch(other, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_users_is_not_overwritten(server: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="remove it"):
        fetch(known(f"{server}/file"), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine" and Server.asked == []


def test_the_second_address_is_tried_where_the_first_has_nothing(server: str, tmp_path: Path) -> None:
    assert fetch(known(f"{server}/missing", f"{server}/file"), tmp_path / "file").read_bytes() == CONTENT
    with pytest.raises(InputError, match="not found"):
        fetch(known(f"{server}/missing"), tmp_path / "other")
    with pytest.raises(InputError, match="503"):
        fetch(known(f"{server}/broken"), tmp_path / "other")
    with pytest.raises(InputError, match="kept"):
        fetch(known("http://127.0.0.1:9/file"), tmp_path / "other")


def test_the_known_sources() -> None:
    source = SOURCES["sigmorphon2018"]
    assert len(source.languages()) == 95 and len(source.files) == 458
    assert all(len(f.sha256) == 64 and f.size > 0 and len(f.urls) == 2 for f in source.files)
    with pytest.raises(InputError, match="klingon"):
        get("sigmorphon2018", "nowhere", ["klingon"])


def test_the_known_sums_are_those_of_the_real_files(shared_data: Path) -> None:
    import tarfile

    known_files = {f.name: f for f in SOURCES["sigmorphon2018"].files}
    checked = 0
    with tarfile.open(shared_data / "sigmorphon2018_task1" / "task1.tar.xz") as tar:
        for member in tar:
            name = Path(member.name).name
            stream = tar.extractfile(member)
            if stream is not None and name in known_files and name.startswith(("s", "f", "r")):
                blob = stream.read()
                assert len(blob) == known_files[name].size
                assert hashlib.sha256(blob).hexdigest() == known_files[name].sha256
                checked += 1
    assert checked > 50
