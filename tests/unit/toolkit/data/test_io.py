"""Pipes, devices and files of unlimited size are rejected at once, with one line that names them."""

from __future__ import annotations

import errno
import gzip
import io
import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tsallis.errors import InputError
from tsallis.toolkit.data import Vocabulary
from tsallis.toolkit.data import io as file_io
from tsallis.toolkit.data.images import open_pictures
from tsallis.toolkit.data.io import decode_lines, distinct_names, read_bytes, read_json, read_lines, stream_lines
from tsallis.toolkit.data.subwords import Subwords
from tsallis.toolkit.tasks.classification import read_labelled
from tsallis.toolkit.tasks.strings import read_strings
from tsallis.toolkit.tasks.vqa import read_questions

READERS: dict[str, Callable[[Path], object]] = {
    "bytes": read_bytes,
    "json": read_json,
    "lines": lambda path: list(read_lines(path)),
    "parallel": lambda path: list(stream_lines(path)),
    "strings": read_strings,
    "documents": read_labelled,
    "questions": read_questions,
    "vocabulary": Vocabulary.load,
    "subwords": Subwords.load,
    "array": open_pictures,
    "tar": open_pictures,
}
ENDINGS = {"array": ".npy", "tar": ".tar"}


@pytest.mark.parametrize("name", READERS)
def test_pipes_devices_and_invalid_names_raise(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"pipe{ENDINGS.get(name, '')}"
    os.mkfifo(path)
    with pytest.raises(InputError, match="expected a file, found a pipe or a device"):
        READERS[name](path)
    path = tmp_path / f"device{ENDINGS.get(name, '')}"
    path.symlink_to("/dev/zero")
    with pytest.raises(InputError, match="expected a file, found a pipe or a device"):
        READERS[name](path)
    for wrong in ("a\0b", "a\ud800", "a" * 300):
        with pytest.raises(InputError, match=r"can't be read: (no file can have this name|File name too long)"):
            READERS[name](tmp_path / (wrong + ENDINGS.get(name, "")))


def test_inherited_pipes_are_readable() -> None:
    """Pipes that a process inherits are readable: `<(...)` in a shell is such a pipe."""
    read, write = os.pipe()
    os.write(write, b"a\nb\n")
    os.close(write)
    assert list(read_lines(f"/dev/fd/{read}")) == ["a", "b"]
    os.close(read)


class Endless(io.RawIOBase):
    def readable(self) -> bool:
        return True

    def readinto(self, target: bytearray) -> int:  # type: ignore[override]
        target[:] = bytes(len(target))
        return len(target)


def test_endless_lines_raise() -> None:
    with pytest.raises(InputError, match="standard input:1: expected text, found a line of more than 16777216 bytes"):
        list(decode_lines(io.BufferedReader(Endless()), "standard input"))


@pytest.mark.parametrize("content", [b"PK\3\4\24\0\0", b"PK\3\4\xff\n"])
def test_spreadsheets_are_recognised(content: bytes) -> None:
    with pytest.raises(InputError, match=r"w:1: expected UTF-8 text, found .*: a zip archive, such as a spreadsheet"):
        list(decode_lines(io.BytesIO(content), "w"))


def test_decode_lines_yields_lines_lazily() -> None:
    lines = decode_lines(io.BytesIO(b"a\nb\n\xff\n"), "in")
    assert [next(lines), next(lines)] == ["a", "b"]
    with pytest.raises(InputError, match="in:3: expected UTF-8 text, found byte 0xff at byte 0 of the line"):
        next(lines)


@pytest.mark.parametrize("ending", [".gz", ".xz"])
@pytest.mark.parametrize("content", [b"\n", b"\0", b"a\n"])
def test_compression_bombs_raise(ending: str, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_io, "PLAUSIBLE", 1 << 18)
    path = tmp_path / f"a{ending}"
    blob = content * (1 << 20)
    path.write_bytes(gzip.compress(blob, 1) if ending == ".gz" else lzma.compress(blob, preset=0))
    with pytest.raises(InputError, match=r"unpacks to more than 200 times its size|a line of more than"):
        for _ in stream_lines(path):
            pass
    text = "".join(f"{i}\n" for i in range(60_000)).encode()  # above the limit, but ordinary text
    path.write_bytes(gzip.compress(text) if ending == ".gz" else lzma.compress(text, preset=0))
    assert sum(1 for _ in stream_lines(path)) == 60_000


def test_files_over_the_size_limit_raise(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 10)
    assert read_bytes(tmp_path / "a", 10) == b"x" * 10
    with pytest.raises(InputError, match="a: expected at most 9 bytes, found more"):
        read_bytes(tmp_path / "a", 9)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "{", "[]", "\x00"])
def test_invalid_json_raises(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(InputError, match=r"a\.json: (not a JSON file|expected a JSON object)"):
        read_json(tmp_path / "a.json")


def test_a_full_disk_raises_with_the_filename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, blob: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_io, "write_all", full)
    with pytest.raises(OSError, match="No space") as caught:
        file_io.write_atomic(tmp_path / "page.html", "text")
    assert caught.value.filename == str(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("there", [True, False])
def test_write_output_keeps_symbolic_links(tmp_path: Path, there: bool) -> None:
    target, link = tmp_path / "results" / "new" / "page.html", tmp_path / "page.html"
    link.symlink_to(Path("results") / "new" / "page.html")
    if there:
        target.parent.mkdir(parents=True)
        target.write_text("old")
    file_io.write_output(link, "whole")
    assert link.is_symlink() and target.read_text() == "whole" and not target.is_symlink()
    assert [path.name for path in target.parent.iterdir()] == ["page.html"]
    file_io.write_output(tmp_path / "folder" / "other", b"plain")
    assert (tmp_path / "folder" / "other").read_bytes() == b"plain"


def test_distinct_names_add_parent_folders_if_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert distinct_names([Path("/a/x/run"), Path("/b/y")]) == ["run", "y"]
    assert distinct_names([Path("/a/x/run"), Path("/a/y/run"), Path("/z")]) == ["x/run", "y/run", "z"]
    assert distinct_names([Path("/x/run"), Path("/a/x/run")]) == ["x/run", "a/x/run"]
    assert distinct_names([Path("/a/run"), Path("/a/b/../run"), Path("/b/run")]) == ["a/run", "a/run", "b/run"]
    monkeypatch.chdir(tmp_path)
    assert distinct_names([Path()]) == [tmp_path.name]


def test_missing_relative_paths_are_reported_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=f"relative to {tmp_path}"):
        file_io.check_file("missing.tsv")
    with pytest.raises(InputError, match=r"No such file or directory$"):
        file_io.check_file(tmp_path / "missing.tsv")
