"""Texts from archives: members are read by their exact names, line by line; nothing else is unpacked."""

from __future__ import annotations

import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.data.io import BoundedStream, Stream, TooLarge, decompress
from tsallis.toolkit.datasets import converters
from tsallis.toolkit.datasets.archive_folders import LONGEST, open_tar, read_folder, write_files, write_images
from tsallis.toolkit.datasets.converters import FOLDER_FORMS, LINE_FORMS, CorruptDownloadError
from tsallis.toolkit.datasets.download import Part, SourceFile, check, fetch, known, record_of, same_digest, take_name

LARGEST = 1 << 26  # maximum bytes of content that can't be read line by line
MANY = 20  # maximum number of archives that are reported one by one
# A zip file may be encrypted (RuntimeError), use an unknown compression (NotImplementedError), or have invalid member
# names (UnicodeDecodeError).
DAMAGE_ERRORS = (
    EOFError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    UnicodeDecodeError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
Report = Callable[[str], None]


def fetch_text(file: SourceFile, path: Path, packed: Path, report: Report | None = None) -> Path:
    """Create a file from archives, which are downloaded into the folder `packed` and kept there.

    The file is renamed to its final name after its lines, size and digest are checked, as far as they are known.

    Raises:
        InputError: If there is no connection, content is wrong, or the folder can't be written.
    """
    try:
        if path.exists():
            check(file, path)
            return path
        _fetch_parts(file, packed, report)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(path.name + ".part")
        try:
            _write(file, beside, packed)
            if not same_digest(file, beside, path):
                raise CorruptDownloadError(f"{path}: the download differs from {known(file, path)} (wrong checksum)")
        except CorruptDownloadError as error:
            beside.unlink(missing_ok=True)
            _throw_away(file, packed, error.culprit)
            raise InputError(f"{error}; it was deleted") from error
        take_name(file, beside, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error}") from error
    return path


def _fetch_parts(file: SourceFile, packed: Path, report: Report | None) -> None:
    missing = [part.archive for part in file.parts if not (packed / part.archive.name).exists()]
    if report is not None and len(missing) > MANY:
        report(f"{missing[0].urls[0]} and {len(missing) - 1} more files, of unknown size")
        report = None
    for part in file.parts:
        for source in part.needs:
            path = packed / source.name
            if report is not None and not path.exists():
                size = "of unknown size" if source.size is None else f"{source.size / 1e6:.1f} MB"
                report(f"{source.urls[0]}, {size}")
            fetch(source, path)


def _throw_away(file: SourceFile, packed: Path, culprit: SourceFile | None) -> None:
    """Remove archives without a known digest after an error: otherwise they would always fail again."""
    sources = {source for part in file.parts for source in part.needs}
    for archive in sources if culprit is None else {culprit}:
        if archive.sha256 is None and archive.md5 is None:
            (packed / archive.name).unlink(missing_ok=True)
            record_of(packed / archive.name).unlink(missing_ok=True)


def _write(file: SourceFile, path: Path, packed: Path) -> None:
    if file.holds == "lines":
        _write_lines(file, path, packed)
    elif file.holds == "files":
        write_files(file, path, packed)
    else:
        (part,) = file.parts
        with _blame(part, part.archive.name):
            write_images(part, path, packed / part.archive.name)
    if file.size not in (None, size := path.stat().st_size):
        raise CorruptDownloadError(f"{path.stem}: expected {file.size} bytes, found {size}")


def _write_lines(file: SourceFile, path: Path, packed: Path) -> None:
    lines = 0
    with path.open("wb") as stream:
        if file.header:
            stream.write(file.header.encode() + b"\n")
            lines = 1
        for part in file.parts:
            for line in read_part(part, packed / part.archive.name):
                lines += 1
                if file.lines is not None and lines > file.lines:
                    raise CorruptDownloadError(f"{path.stem}: expected {file.lines} lines, found more")
                stream.write(line + b"\n")
    if file.lines not in (None, lines):
        raise CorruptDownloadError(f"{path.stem}: expected {file.lines} lines, found {lines}")


def read_part(part: Part, path: Path) -> Iterator[bytes]:
    """Yield the selected lines of a text in an archive, without line ends."""
    where = f"{path.name}: {part.member}" if part.member else path.name
    with _blame(part, where):
        step = abs(part.every)
        for number, line in enumerate(_member_lines(part, path, where), start=1):
            if not step or (number % step == 0) == (part.every > 0):
                yield line


@contextmanager
def _blame(part: Part, where: str) -> Iterator[None]:
    try:
        yield
    except TooLarge as error:
        raise CorruptDownloadError(str(error)) from error
    except DAMAGE_ERRORS as error:
        raise CorruptDownloadError(f"{where}: can't be unpacked: {error or type(error).__name__}") from error


def _member_lines(part: Part, path: Path, where: str) -> Iterator[bytes]:
    if part.packing == "tar-folder":
        yield from read_folder(part, path, FOLDER_FORMS[part.form])
        return
    with _open_part(part, path) as stream:
        if part.form == "questions":
            yield from converters.questions(_whole(stream, where), where)
            return
        lines = _lines(stream, where)
        if part.listed is not None:
            with path.with_name(part.listed.name).open("rb") as names:
                lines = converters.pairs(lines, list(_lines(names, part.listed.name)), where)
        elif part.form != "lines":
            lines = LINE_FORMS[part.form](lines, where, part)
        yield from lines


@contextmanager
def _open_part(part: Part, path: Path) -> Iterator[Stream]:
    if part.packing == "tar":
        with open_tar(path) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            for member in tar:
                # Ignore links and devices of that name.
                content = tar.extractfile(member) if member.name == part.member and member.isreg() else None
                if content is not None:
                    yield BoundedStream(content, packed, path)
                    return
            raise CorruptDownloadError(f"{path.name}: holds no {part.member}")
    with path.open("rb") as packed:
        if part.packing in ("plain", "gz", "xz"):
            yield decompress(packed, path, part.packing)
            return
        with zipfile.ZipFile(packed) as archive:
            if part.member not in archive.namelist():
                raise CorruptDownloadError(f"{path.name}: holds no {part.member}")
            with archive.open(part.member) as stream:
                yield BoundedStream(stream, packed, path)


def _lines(stream: Stream, where: str) -> Iterator[bytes]:
    while line := stream.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise CorruptDownloadError(f"{where}: expected text, found a line of more than {LONGEST} bytes")
        yield line.removesuffix(b"\n")


def _whole(stream: Stream, where: str) -> bytes:
    content = stream.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise CorruptDownloadError(f"{where}: expected at most {LARGEST} bytes, found more")
    return content
