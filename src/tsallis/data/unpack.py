"""Texts out of packed files: members are read by their exact names, line by line, and nothing else is unpacked."""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tsallis.data.clusters import split_pairs
from tsallis.data.download import Part, SourceFile, check, fetch, known, record_of, same_digest, take_name
from tsallis.errors import InputError

LONGEST = 1 << 20  # bytes a line: a file that is no text at all shows early
DAMAGED = (EOFError, gzip.BadGzipFile, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, zlib.error)
Report = Callable[[str], None]
Stream = IO[bytes] | gzip.GzipFile | lzma.LZMAFile


class _NotIt(Exception):
    """The file that was transferred does not hold what it should."""


def fetch_text(file: SourceFile, path: Path, packed: Path, report: Report | None = None) -> Path:
    """A text from the files it is packed in, which are fetched into the folder `packed` and stay there.

    It takes its name when its lines, its size and its digest are the known ones, as far as they are known.

    Raises:
        InputError: no connection, content that is not the known one, or a folder that can't be written.
    """
    try:
        if path.exists():
            check(file, path)
            return path
        for part in file.parts:
            fetch_archive(part.archive, packed, report)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".part")
        try:
            _write(file, beside, packed)
            if not same_digest(file, beside, path):
                raise _NotIt(f"{path}: what arrived is not {known(file, path)} (its digest differs)")
        except _NotIt as error:
            beside.unlink(missing_ok=True)
            _throw_away(file, packed)
            raise InputError(f"{error}; it was thrown away") from error
        take_name(file, beside, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error}") from error
    return path


def fetch_archive(archive: SourceFile, packed: Path, report: Report | None) -> None:
    path = packed / archive.name
    if report is not None and not path.exists():
        size = "of unknown size" if archive.size is None else f"{archive.size / 1e6:.1f} MB"
        report(f"{archive.urls[0]}, {size}")
    fetch(archive, path)


def _throw_away(file: SourceFile, packed: Path) -> None:
    """Archives whose content nothing vouches for: kept, they would fail in the same way for ever."""
    for archive in {part.archive for part in file.parts}:
        if archive.sha256 is None and archive.md5 is None:
            (packed / archive.name).unlink(missing_ok=True)
            record_of(packed / archive.name).unlink(missing_ok=True)


def _write(file: SourceFile, path: Path, packed: Path) -> None:
    lines = size = 0
    with path.open("wb") as stream:
        for part in file.parts:
            for line in read_part(part, packed / part.archive.name):
                lines, size = lines + 1, size + len(line) + 1
                if file.lines is not None and lines > file.lines:
                    raise _NotIt(f"{path.stem}: expected {file.lines} lines, found more")
                stream.write(line + b"\n")
    if file.lines not in (None, lines):
        raise _NotIt(f"{path.stem}: expected {file.lines} lines, found {lines}")
    if file.size not in (None, size):
        raise _NotIt(f"{path.stem}: expected {file.size} bytes, found {size}")


def read_part(part: Part, path: Path) -> Iterator[bytes]:
    """The wanted lines of a packed text, without their ends."""
    where = f"{path.name}: {part.member}" if part.member else path.name
    try:
        with _opened(part, path) as stream:
            lines = _lines(stream, where)
            if part.form == "segments":
                lines = _segments(lines, where)
            elif part.form == "talks":
                lines = _talks(lines)
            elif part.form == "clusters":
                lines = _clusters(lines, where, part)
            step = abs(part.every)
            for number, line in enumerate(lines, start=1):
                if not step or (number % step == 0) == (part.every > 0):
                    yield line
    except DAMAGED as error:
        raise _NotIt(f"{where}: can't be unpacked: {error or type(error).__name__}") from error


@contextmanager
def _opened(part: Part, path: Path) -> Iterator[Stream]:
    if part.packing == "gz":
        with gzip.open(path, "rb") as stream:
            yield stream
    elif part.packing == "xz":
        with lzma.open(path, "rb") as stream:
            yield stream
    elif part.packing == "zip":
        with zipfile.ZipFile(path) as archive:
            if part.member not in archive.namelist():
                raise _NotIt(f"{path.name}: holds no {part.member}")
            with archive.open(part.member) as stream:
                yield stream
    else:
        with tarfile.open(path, "r|*") as tar:
            for member in tar:
                # A link or a device of that name is not it.
                content = tar.extractfile(member) if member.name == part.member and member.isreg() else None
                if content is not None:
                    yield content
                    return
            raise _NotIt(f"{path.name}: holds no {part.member}")


def _lines(stream: Stream, where: str) -> Iterator[bytes]:
    while line := stream.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise _NotIt(f"{where}: expected text, found a line of more than {LONGEST} bytes")
        yield line.removesuffix(b"\n")


def _text(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _NotIt(f"{where}: expected UTF-8 text, found byte 0x{error.object[error.start]:02x}") from error


def _segments(lines: Iterator[bytes], where: str) -> Iterator[bytes]:
    """The sentences of a test set in SGML; white space as sacrebleu leaves it, so that references are the same."""
    for line in lines:
        if not line.lstrip().startswith(b"<seg"):
            continue
        found = re.fullmatch(r"\s*<seg[^>]*>(.*)</seg>\s*", _text(line, where))
        if not found:
            raise _NotIt(f"{where}: expected <seg>...</seg> in one line, found {_text(line, where)[:50]!r}")
        yield " ".join(found[1].split()).encode()


def _talks(lines: Iterator[bytes]) -> Iterator[bytes]:
    """The sentences of TED talks, without the lines that describe a talk: its address, title and speaker."""
    for line in lines:
        if not line.lstrip().startswith(b"<"):
            yield b" ".join(line.split())


def _clusters(lines: Iterator[bytes], where: str, part: Part) -> Iterator[bytes]:
    """One side of one split of tab-separated pairs."""
    pairs = []
    for line in lines:
        columns = _text(line, where).split("\t")
        if len(columns) < 2:
            raise _NotIt(f"{where}: expected two columns, found {columns[0][:50]!r}")
        pairs.append((columns[0], columns[1]))
    for pair in split_pairs(pairs)[part.split]:
        yield pair[part.column].encode()
