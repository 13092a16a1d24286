"""Create files of data sets from archives. Only members with expected names are read; nothing else is unpacked."""

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
from typing import IO, cast

from tsallis.errors import InputError
from tsallis.toolkit.data.io import BoundedStream, Stream, decompress
from tsallis.toolkit.datasets import converters
from tsallis.toolkit.datasets.converters import FOLDER_FORMS, LINE_FORMS
from tsallis.toolkit.datasets.download import Part, SourceFile, check, fetch, known, record_of, same_digest, take_name

LONGEST = 1 << 20  # maximum bytes of a line or a small file; larger input is rejected as a wrong file
LARGEST = 1 << 26  # maximum bytes of content that can't be read line by line
MANY = 20  # maximum number of archives with separate reports; more archives share one report
PNG = b"\x89PNG\r\n\x1a\n"  # first bytes of a PNG file
# Errors of unpacking. An encrypted zip file, or a zip file with an unknown compression, raises a RuntimeError.
DAMAGE_ERRORS = (
    EOFError,
    LookupError,
    OverflowError,
    RuntimeError,
    TypeError,
    ValueError,
    gzip.BadGzipFile,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
)
Report = Callable[[str], None]


def fetch_text(file: SourceFile, path: Path, packed: Path, report: Report | None = None) -> Path:
    """Create a file from archives. The archives are downloaded into the folder `packed` and kept there.

    The function checks the number of lines, the size and the digest, as far as they are known. Then it renames the file
    to its final name.

    Raises:
        InputError: If there is no connection, content is wrong, or the folder can't be written.
    """
    try:
        if path.exists():
            check(file, path)
            return path
        _fetch_parts(file, packed, report)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        try:
            _write(file, partial, packed)
            if not same_digest(file, partial, path):
                raise ValueError(f"{path}: the download differs from {known(file, path)} (wrong checksum)")
        except ValueError as error:
            partial.unlink(missing_ok=True)
            # Delete archives without a digest: if they are wrong, every later attempt would fail, too.
            unchecked = {source for part in file.parts for source in part.needs if not source.has_digest}
            for archive in unchecked:
                (packed / archive.name).unlink(missing_ok=True)
                record_of(packed / archive.name).unlink(missing_ok=True)
            raise InputError(f"{error}{'; the download was deleted' if unchecked else ''}") from error
        take_name(file, partial, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: its content does not fit into memory; the download is kept") from error
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
            if file.holds == "files" and not _is_png(path):
                path.unlink()
                record_of(path).unlink(missing_ok=True)
                raise InputError(f"{source.urls[0]}: expected a PNG file; the download was deleted")


def _is_png(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(PNG)) == PNG


def _write(file: SourceFile, path: Path, packed: Path) -> None:
    if file.holds == "lines":
        _write_lines(file, path, packed)
    elif file.holds == "files":
        _write_files(file, path, packed)
    else:
        (part,) = file.parts
        with _unpacking_errors(part.archive.name):
            _write_images(part, path, packed / part.archive.name)
    if file.size not in (None, size := path.stat().st_size):
        raise ValueError(f"{path.stem}: expected {file.size} bytes, found {size}")


def _write_lines(file: SourceFile, path: Path, packed: Path) -> None:
    lines = 0
    with path.open("wb") as stream:
        if file.header:
            stream.write(file.header.encode() + b"\n")
            lines = 1
        for part in file.parts:
            for line in read_part(part, packed / part.archive.name):
                lines += 1
                stream.write(line + b"\n")
    if file.lines not in (None, lines):
        raise ValueError(f"{path.stem}: expected {file.lines} lines, found {lines}")


def _write_images(part: Part, path: Path, archive: Path) -> None:
    """Write the PNG files numbered 0, 1, ... as one array [images, height, width, 3] of uint8, in NumPy's format."""
    import numpy as np  # imported here, because listing data sets does not need it

    from tsallis.toolkit.data.images import decode_picture

    images = {key: decode_picture(content, match[0]) for key, match, content in _members(part, archive)}
    if sorted(images) != [(number,) for number in range(len(images))]:
        raise ValueError(f"expected images numbered from 0 to {len(images) - 1}, found other numbers")
    with path.open("wb") as stream:
        np.save(stream, np.stack([images[key] for key in sorted(images)]))


def _write_files(file: SourceFile, path: Path, packed: Path) -> None:
    """Write files unchanged into a tar file, whose bytes depend only on the names and contents of the files."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for part in file.parts:
            with (packed / part.archive.name).open("rb") as stream:
                member = tarfile.TarInfo(part.archive.name)
                member.size = (packed / part.archive.name).stat().st_size
                tar.addfile(member, stream)


def read_part(part: Part, path: Path) -> Iterator[bytes]:
    """Yield the selected lines of a text in an archive, without line ends."""
    with _unpacking_errors(f"{path.name}: {part.member}" if part.member else path.name):
        step = abs(part.every)
        for number, line in enumerate(_part_lines(part, path), start=1):
            if not step or (number % step == 0) == (part.every > 0):
                yield line


@contextmanager
def _unpacking_errors(where: str) -> Iterator[None]:
    """Convert errors of unpacking and conversion to a ValueError that names the file."""
    try:
        yield
    except DAMAGE_ERRORS as error:
        raise ValueError(f"{where}: can't be read: {error or type(error).__name__}") from error


def _part_lines(part: Part, path: Path) -> Iterator[bytes]:
    if part.packing == "tar-folder":
        contents = {}
        for key, match, content in _members(part, path):
            with _unpacking_errors(match[0]):
                contents[key] = list(FOLDER_FORMS[part.form](match, content))
        for key in sorted(contents):
            yield from contents.pop(key)
        return
    with _open_part(part, path) as stream:
        if part.form == "questions":
            content = stream.read(LARGEST + 1)
            if len(content) > LARGEST:
                raise ValueError(f"expected at most {LARGEST} bytes, found more")
            yield from converters.questions(content)
            return
        lines = _lines(stream)
        if part.listed is not None:
            with path.with_name(part.listed.name).open("rb") as names:
                lines = converters.pairs(lines, list(_lines(names)))
        elif part.form != "lines":
            lines = LINE_FORMS[part.form](lines, part)
        yield from lines


def _members(part: Part, path: Path) -> Iterator[tuple[tuple[int | str, ...], re.Match[str], bytes]]:
    """Yield the sort key, the name and the content of each member that matches. Numbers in sort keys are integers."""
    pattern = re.compile(part.member or "")
    keys = set()
    with _open_tar(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # free the memory: tarfile keeps all members
            match = pattern.fullmatch(member.name)
            content = tar.extractfile(member) if match is not None and member.isreg() else None
            if match is None or content is None:
                continue
            key = tuple(int(group) if group.isdecimal() else group for group in match.groups())
            if key in keys or member.size > LONGEST:
                problem = (
                    "occurs twice in the archive"
                    if key in keys
                    else f"expected at most {LONGEST} bytes, found {member.size}"
                )
                raise ValueError(f"{member.name}: {problem}")
            keys.add(key)
            yield key, match, content.read()
        # Read to the end, so that the checksum is verified: tarfile does not report truncated archives.
        while stream.read(LONGEST):
            pass
    if part.count not in (None, len(keys)):
        raise ValueError(f"expected {part.count} files whose names match {part.member}, found {len(keys)}")


@contextmanager
def _open_part(part: Part, path: Path) -> Iterator[Stream]:
    if part.packing == "tar":
        with _open_tar(path) as packed, tarfile.open(fileobj=packed, mode="r|") as tar:
            for member in tar:
                # Ignore links and devices, even if they have the right name.
                content = tar.extractfile(member) if member.name == part.member and member.isreg() else None
                if content is not None:
                    yield BoundedStream(content, packed, path)
                    return
            raise ValueError("missing from the archive")
    with path.open("rb") as packed:
        if part.packing in ("plain", "gz", "xz"):
            yield decompress(packed, path, part.packing)
            return
        with zipfile.ZipFile(packed) as archive, archive.open(str(part.member)) as stream:
            yield BoundedStream(stream, packed, path)


def _open_tar(path: Path) -> IO[bytes]:
    """Open a tar file, which may be compressed with gzip or xz.

    The module gzip is used because the gzip reader of tarfile does not detect truncated headers.
    """
    with path.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return cast("IO[bytes]", lzma.open(path, "rb")) if start == b"\xfd7zXZ\0" else path.open("rb")


def _lines(stream: Stream) -> Iterator[bytes]:
    while line := stream.readline(LONGEST + 1):
        if len(line) > LONGEST:
            raise ValueError(f"expected text, found a line of more than {LONGEST} bytes")
        yield line.removesuffix(b"\n")
