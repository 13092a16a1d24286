"""Read files that may be missing, damaged or forged: an error names the file and what is wrong with it."""

from __future__ import annotations

import codecs
import gzip
import json
import lzma
import os
import stat
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast

from tsallis.errors import InputError, memory_for

PACKED = ("", ".xz", ".gz")  # what the name of a text file may have behind it
LONGEST = 1 << 24  # bytes of a line
PLAUSIBLE = 1 << 26  # bytes that anything may unpack to
RATIO = 200  # times its size that a longer text may unpack to
DAMAGED = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # names of what the process was started with


class TooLarge(InputError):
    """A packed file that outgrows what text can be packed to."""


class Stream(Protocol):
    """Anything that can be read to its end."""

    def read(self, size: int = ..., /) -> bytes: ...

    def readline(self, size: int = ..., /) -> bytes: ...


def find_packed(path: Path | str, endings: Sequence[str] = PACKED) -> Path | None:
    """Return the file of that name, or that name with one of the endings behind it."""
    path = Path(path)
    return next((candidate for ending in endings if (candidate := path.with_name(path.name + ending)).is_file()), None)


def open_file(path: Path | str) -> IO[bytes]:
    """Open a file for reading; a pipe or device in its place, which might block or never end, is refused.

    Raises:
        InputError: what can't be read, or is no file.
    """
    try:
        mode = os.stat(path).st_mode  # a pipe without a writer would block once it is opened
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or str(path).startswith(OPEN_ALREADY):
            return Path(path).open("rb")
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error
    except ValueError as error:  # a null byte or a lone surrogate
        raise InputError(f"{path}: can't be read: no file has such a name") from error
    raise InputError(f"{path}: can't be read: expected a file, found a pipe or a device")


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Make what goes wrong while a file is read and unpacked an :class:`~tsallis.errors.InputError`."""
    try:
        with memory_for(f"{path}: its content"):
            yield
    except DAMAGED as error:
        raise InputError(f"{path}: can't be unpacked as {Path(path).suffix}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def read_bytes(path: Path | str, limit: int | None = None) -> bytes:
    """Return the content of a file, of at most `limit` bytes; one that can't be read is an InputError."""
    with open_file(path) as stream, reading(path):
        content = stream.read(-1 if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise InputError(f"{path}: expected at most {limit} bytes, found more")
    return content


def read_json(path: Path | str) -> dict[str, Any]:
    """Return the JSON object in a file; anything else is an :class:`~tsallis.errors.InputError`."""
    blob = read_bytes(path)
    try:
        content = json.loads(blob.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object")
    return content


def read_lines(path: Path | str, expected: str = "text") -> Iterator[str]:
    """Yield the lines of a UTF-8 file, plain, `.gz` or `.xz`, as :func:`decode_lines`.

    Raises:
        InputError: as :func:`decode_lines`, or a file that can't be read or is not what its ending says.
    """
    with open_file(path) as stream, reading(path):
        yield from decode_lines(unpack(stream, Path(path)), str(path), expected)


def stream_lines(path: Path | str, expected: str = "text") -> Iterator[str]:
    """Yield the lines of a UTF-8 text as :func:`read_lines`, white space around them removed."""
    return map(str.strip, read_lines(path, expected))


def decode_lines(stream: Stream, name: str, expected: str = "text") -> Iterator[str]:
    """Yield the lines of UTF-8 bytes, split at line feeds alone: fields may hold any other separator.

    Args:
        stream: read one line after the other.
        name: what an error calls it.
        expected: what the lines should hold.

    Raises:
        InputError: no line at all, a byte order mark, a line that is not UTF-8 or of more than 16 MiB.
    """
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise InputError(f"{name}:{number}: expected {expected}, found a line of more than {LONGEST} bytes")
        if number == 1 and line.startswith(codecs.BOM_UTF8):
            # It would become the first character of the first field.
            raise InputError(f"{name}:1: expected UTF-8 without a byte order mark, found one")
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            culprit = f"byte 0x{line[error.start]:02x} at byte {error.start} of the line"
            raise InputError(f"{name}:{number}: expected UTF-8 text, found {culprit}") from error
        yield text.removesuffix("\n")
    if number == 0:
        raise InputError(f"{name}: the file is empty, expected lines of {expected}")


def unpack(stream: IO[bytes], path: Path) -> Stream:
    """Decompress a stream of `.gz` or `.xz`, by the path's ending; return any other one as it is."""
    if path.suffix == ".gz":
        return Unpacked(cast("Stream", gzip.open(stream)), stream, path)
    return Unpacked(cast("Stream", lzma.open(stream)), stream, path) if path.suffix == ".xz" else stream


class Unpacked:
    """A text while it is unpacked; one that outgrows what text can be packed to is no text.

    Args:
        stream: what is read.
        packed: the file it comes from.
        path: its name.
    """

    def __init__(self, stream: Stream, packed: IO[bytes], path: Path) -> None:
        self.stream, self.path, self.size = stream, path, 0
        self.limit = max(PLAUSIBLE, RATIO * os.fstat(packed.fileno()).st_size)

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes, and count them."""
        return self._count(self.stream.read(size))

    def readline(self, size: int = -1, /) -> bytes:
        """Read a line of up to `size` bytes, and count them."""
        return self._count(self.stream.readline(size))

    def _count(self, content: bytes) -> bytes:
        self.size += len(content)
        if self.size > self.limit:
            raise TooLarge(f"{self.path}: unpacks to more than {RATIO} times its size, as no text does")
        return content
