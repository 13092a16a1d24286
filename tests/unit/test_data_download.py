"""Downloads against a local server that breaks off, forgets ranges, lies and changes its mind."""

from __future__ import annotations

import hashlib
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tsallis.data import download, sources
from tsallis.data.download import SourceFile, fetch
from tsallis.data.sources import SOURCES, Source, get, language_of
from tsallis.errors import InputError

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What the server does next, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=lambda: {"/file": CONTENT})
    ranges: bool = True
    cut: int | None = None  # bytes after which it hangs up
    status: int | None = None
    length: bool = True  # says how long the answer is
    shift: int = 0  # how far a range begins from where it was asked for
    asked: list[tuple[str, str | None]] = field(default_factory=list)

    def file(self, *paths: str, content: bytes = CONTENT) -> SourceFile:
        urls = tuple(self.address + path for path in paths or ("/file",))
        return SourceFile("file", urls, len(content), hashlib.sha256(content).hexdigest())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    behaviour = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            behaviour.asked.append((self.path, asked))
            content = behaviour.files.get(self.path)
            if behaviour.status or content is None:
                self.send_error(behaviour.status or 404)
                return
            start = 0
            if asked and behaviour.ranges:
                start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) + behaviour.shift
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            if behaviour.length:
                self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            body = content[start:]
            self.wfile.write(body if behaviour.cut is None else body[: behaviour.cut])

        def log_message(self, *arguments: object) -> None:
            pass

    monkeypatch.setenv("no_proxy", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        behaviour.address = f"http://127.0.0.1:{http.server_port}"
        yield behaviour
        http.shutdown()
        thread.join()


def test_a_file_is_fetched_once(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    assert fetch(server.file(), path) == path
    assert path.read_bytes() == CONTENT
    assert fetch(server.file(), path) == path
    assert server.asked == [("/file", None)]
    assert [p.name for p in path.parent.iterdir()] == ["file"]


def test_a_transfer_that_breaks_off_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    path, part = tmp_path / "file", tmp_path / "file.part"
    server.cut = 100_000
    for kept in (100_000, 200_000):
        with pytest.raises(InputError, match=rf"/file: .*; {kept} of 256000 bytes are kept, the same command goes on"):
            fetch(server.file(), path)
        assert not path.exists() and part.read_bytes() == CONTENT[:kept]
    fetch(server.file(), path)
    assert path.read_bytes() == CONTENT and not part.exists()
    assert [asked for _, asked in server.asked] == [None, "bytes=100000-", "bytes=200000-"]


def test_an_answer_of_unknown_length_that_breaks_off(server: Server, tmp_path: Path) -> None:
    server.length, server.cut = False, 1000
    with pytest.raises(InputError, match="1000 of 256000 bytes are kept"):
        fetch(server.file(), tmp_path / "file")
    server.cut = None
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT


def test_a_server_that_ignores_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.ranges = False
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == [("/file", "bytes=5000-")]


def test_a_server_that_sends_another_range(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.shift = 7
    with pytest.raises(InputError, match=r"expected bytes 5000-255999/256000 .* sent 'bytes 5007-255999/256000'"):
        fetch(server.file(), tmp_path / "file")
    assert (tmp_path / "file.part").read_bytes() == CONTENT[:5000] and not (tmp_path / "file").exists()


def test_a_whole_part_needs_no_server(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    assert server.asked == []


@pytest.mark.parametrize("part", [b"x" * 5000, b"x" * len(CONTENT), CONTENT + b"x"], ids=["begun", "whole", "long"])
def test_a_part_of_something_else_is_fetched_anew(server: Server, tmp_path: Path, part: bytes) -> None:
    (tmp_path / "file.part").write_bytes(part)
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT
    # Only what could still become the file is gone on with.
    begun = [("/file", "bytes=5000-")] if len(part) < len(CONTENT) else []
    assert server.asked == [*begun, ("/file", None)]


def test_wrong_content_never_takes_the_name(server: Server, tmp_path: Path) -> None:
    server.files["/file"] = CONTENT[:-1] + b"x"
    with pytest.raises(InputError, match="what arrived is not the known file"):
        fetch(server.file(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", [b"<html>log in first</html>", CONTENT * 2], ids=["short", "long"])
def test_content_of_another_length_is_refused_unread(server: Server, tmp_path: Path, other: bytes) -> None:
    server.files["/file"] = other
    with pytest.raises(InputError, match=f"expected a file of 256000 bytes, the server has {len(other)}"):
        fetch(server.file(), tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_no_more_than_the_known_size_is_kept(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    digest = download._digest
    monkeypatch.setattr(download, "_digest", lambda p: (sizes.append(p.stat().st_size), digest(p))[1])
    server.files["/file"], server.length = b"x" * 2_000_000, False
    with pytest.raises(InputError, match="not the known file"):
        fetch(server.file(), tmp_path / "file")
    assert sizes == [len(CONTENT)] and list(tmp_path.iterdir()) == []


def test_a_changed_file_of_the_user_is_left_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"mine")
    with pytest.raises(InputError, match="is not the known file"):
        fetch(server.file(), tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"mine" and server.asked == []


def test_the_second_address_where_the_first_has_nothing(server: Server, tmp_path: Path) -> None:
    assert fetch(server.file("/gone", "/file"), tmp_path / "file").read_bytes() == CONTENT
    assert [path for path, _ in server.asked] == ["/gone", "/file"]
    with pytest.raises(InputError, match=r"/gone and .*/lost: not found on the server"):
        fetch(server.file("/gone", "/lost"), tmp_path / "other")


@pytest.mark.parametrize("status", [403, 416, 500, 503])
def test_a_server_that_refuses(server: Server, tmp_path: Path, status: int) -> None:
    (tmp_path / "file.part").write_bytes(CONTENT[:5000])
    server.status = status
    with pytest.raises(InputError, match=f"the server answered {status}"):
        fetch(server.file("/file", "/file"), tmp_path / "file")
    assert len(server.asked) == 1
    server.status = None
    assert fetch(server.file(), tmp_path / "file").read_bytes() == CONTENT


def test_no_server_at_all(server: Server, tmp_path: Path) -> None:
    file = SourceFile("file", ("http://127.0.0.1:1/file",), len(CONTENT), DIGEST)
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1/file: .*refused.*; 0 of 256000 bytes are kept"):
        fetch(file, tmp_path / "file")


def test_places_that_can_not_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InputError, match=r"file/below: can't be written: .*File exists: '.*/file'"):
        fetch(server.file(), tmp_path / "file" / "below")
    with pytest.raises(InputError, match=r"can't be written: .*Is a directory"):
        fetch(server.file(), tmp_path)
    assert server.asked == []


def test_languages_of_a_data_set(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["old-irish-dev", "irish-gaelic-dev", "irish-dev"]
    server.files = {f"/{name}": name.encode() for name in names}
    files = tuple(
        SourceFile(n, (f"{server.address}/{n}",), len(n), hashlib.sha256(n.encode()).hexdigest()) for n in names
    )
    monkeypatch.setitem(sources.SOURCES, "tiny", Source("tiny", "", "", "", files))
    assert get("tiny", tmp_path, ["irish"]) == [tmp_path / "irish-dev"]
    assert [p.name for p in get("tiny", str(tmp_path))] == names
    assert [path for path, _ in server.asked] == ["/irish-dev", "/old-irish-dev", "/irish-gaelic-dev"]
    assert all((tmp_path / name).read_text() == name for name in names)
    with pytest.raises(
        InputError, match=r"tiny has no language 'welsh', 'Irish'; it has irish, irish-gaelic, old-irish"
    ):
        get("tiny", tmp_path, ["irish", "welsh", "Irish"])
    with pytest.raises(InputError, match=r"unknown data set 'tinny', known: .*sigmorphon2018"):
        get("tinny", tmp_path)


def test_the_known_data_sets() -> None:
    assert SOURCES
    for name, source in SOURCES.items():
        assert source.name == name and source.licence and source.citation and source.title
        assert source.size == sum(file.size for file in source.files)
        assert len({file.name for file in source.files}) == len(source.files)
        for file in source.files:
            assert file.size > 0 and re.fullmatch("[0-9a-f]{64}", file.sha256)
            assert file.urls and all(u.startswith("https://") and u.endswith(f"/{file.name}") for u in file.urls)
            # A commit, not a branch: what lies there can't change.
            assert all(re.search("/[0-9a-f]{40}/", url) for url in file.urls)


def test_languages_of_sigmorphon2018() -> None:
    source = SOURCES["sigmorphon2018"]
    names = {file.name for file in source.files}
    assert len(source.languages()) == 95 and {"spanish", "finnish", "russian", "english"} <= set(source.languages())
    for language in source.languages():
        assert {f"{language}-train-low", f"{language}-dev", f"{language}-test"} <= names
    counts = [sum(name.endswith(end) for name in names) for end in ("-high", "-medium", "-low", "-dev", "-test")]
    assert counts == [79, 94, 95, 95, 95]
    assert language_of("crimean-tatar-train-medium") == "crimean-tatar"


def test_the_registry_is_right_about_every_published_file(shared_data: Path) -> None:
    archive = shared_data / "sigmorphon2018_task1" / "task1.tar.xz"
    if not archive.is_file():
        pytest.skip(f"needs {archive}")
    found = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            if stream is not None and not member.name.endswith("-covered-test"):
                data = stream.read()
                found[Path(member.name).name] = (len(data), hashlib.sha256(data).hexdigest())
    assert {f.name: (f.size, f.sha256) for f in SOURCES["sigmorphon2018"].files} == found
