"""Read and write files, with errors that name the file and the problem."""

from __future__ import annotations

import codecs
import errno
import gzip
import hashlib
import json
import lzma
import math
import os
import re
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol, cast

from tsallis.errors import IgnoredInputWarning, InputError, describe, memory_for

# Errors that mean that the file system does not support locks.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Without this flag, opening a FIFO blocks until another process writes to the FIFO. Some systems lack the flag.
NONBLOCK = getattr(os, "O_NONBLOCK", 0)
PACKED_ENDINGS = ("", ".xz", ".gz")  # accepted endings of text files: plain or compressed
LONGEST = 1 << 24  # maximum bytes per line
MAX_BLANK = 100_000  # maximum number of consecutive blank lines
PLAUSIBLE = 1 << 26  # decompressed size in bytes up to which any compression ratio is accepted
RATIO = 200  # maximum compression ratio of a text that is larger than PLAUSIBLE
DAMAGE_ERRORS = (gzip.BadGzipFile, lzma.LZMAError, zlib.error, EOFError)
# First bytes of unsupported contents. UTF-32 comes first, because its mark begins with the mark of UTF-16.
MARKS = {
    codecs.BOM_UTF32_LE: "a byte order mark of UTF-32",
    codecs.BOM_UTF32_BE: "a byte order mark of UTF-32",
    codecs.BOM_UTF16_LE: "a byte order mark of UTF-16",
    codecs.BOM_UTF16_BE: "a byte order mark of UTF-16",
    b"BZh": "compressed by bzip2; .gz and .xz are supported",
    b"\x28\xb5\x2f\xfd": "compressed by zstd; .gz and .xz are supported",
    b"\x1f\x8b": "compressed by gzip; the name of such a file must end in .gz",
    b"\xfd7zXZ": "compressed by xz; the name of such a file must end in .xz",
    b"PK\x03\x04": "a zip archive, such as a spreadsheet; save it as text with tabs",
}
OPEN_ALREADY = ("/dev/fd/", "/dev/stdin", "/proc/self/fd/")  # paths of streams that the process has inherited


class TooLarge(InputError):
    """Error of a compressed file whose compression ratio is implausible for text."""


class Stream(Protocol):
    """Stream of bytes that can be read as a whole or line by line."""

    def read(self, size: int = ..., /) -> bytes: ...

    def readline(self, size: int = ..., /) -> bytes: ...


def json_text(content: Any, **options: Any) -> str:
    """Return content as JSON. Infinities and NaN become null, because JSON has neither.

    >>> json_text({"loss": math.nan, "probs": (0.5, 1.0)})
    '{"loss": null, "probs": [0.5, 1.0]}'
    """
    text = json.dumps(_replace_nonfinite(content), **{"ensure_ascii": False, "allow_nan": False, **options})
    return text.encode("utf-8", "backslashreplace").decode("utf-8")  # lone surrogates become JSON escapes


def _replace_nonfinite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _replace_nonfinite(part) for key, part in value.items()}
    return [_replace_nonfinite(part) for part in value] if isinstance(value, list | tuple) else value


def write_atomic(path: Path | str, data: bytes | str) -> None:
    """Write a file atomically: readers see the complete old file or the complete new file.

    Text is written as UTF-8. The function writes a temporary file, flushes it to the disk and renames it. The temporary
    file is in the same folder, because a rename is atomic only inside one file system. The folder must exist.

    Raises:
        OSError: If writing fails. An existing file at `path` is then unchanged.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> write_atomic(folder / "a.txt", "whole")
    >>> (folder / "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        try:
            write_all(handle, data.encode("utf-8") if isinstance(data, str) else data)
            os.fsync(handle)
        finally:
            os.close(handle)
        # mkstemp creates private files: change the permissions to the user's default for new files.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, path)
    except BaseException as error:
        if os.path.exists(temporary):
            os.unlink(temporary)
        # The error lacks the path, for example if the disk is full.
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise
    sync_folder(path.parent)


def write_output(path: Path | str, data: bytes | str) -> None:
    """Write a file with :func:`write_atomic`, but follow links. Use this function for paths from users.

    The folder is created if it is missing.
    """
    target = Path(os.path.realpath(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, data)


@contextmanager
def created_folder(folder: Path) -> Iterator[None]:
    """Create a folder with its parents; if the block raises an InputError, remove the new folders that are empty."""
    missing = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except (InputError, KeyboardInterrupt):
        with suppress(OSError):
            for path in missing:
                path.rmdir()
        raise


def distinct_names(paths: Sequence[Path]) -> list[str]:
    """Return a short name of each path: its shortest ending that no different path has.

    >>> distinct_names([Path("/a/best"), Path("/b/best"), Path("/b/last")])
    ['a/best', 'b/best', 'last']
    """
    split_paths = [Path(os.path.abspath(path)).parts for path in paths]
    names = []
    for parts in split_paths:
        other_paths = [other for other in split_paths if other != parts]
        count = next(n for n in range(1, len(parts) + 1) if all(other[-n:] != parts[-n:] for other in other_paths))
        names.append("/".join(parts[-count:]).lstrip("/") or "/")
    return names


def write_all(handle: int, blob: bytes) -> None:
    """Write all of `blob`, in several calls if the system requires it."""
    remaining = memoryview(blob)
    while remaining:
        remaining = remaining[os.write(handle, remaining) :]


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system supports it."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows raises this for every folder
        return
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def is_leftover(path: Path, names: Iterable[str]) -> bool:
    """Return whether `path` is a temporary file that a killed :func:`write_atomic` left for a file in `names`."""
    match = re.fullmatch(r"\.(.+)\.[a-z0-9_]{8}\.tmp", path.name)
    return match is not None and match[1] in names and is_regular(path)


def remove_leftovers(folder: Path, names: Iterable[str]) -> None:
    """Remove temporary files that killed writes of the files in `names` left in a folder."""
    for path in list(folder.iterdir()):
        if is_leftover(path, names):
            path.unlink()


def is_regular(path: Path) -> bool:
    """Return whether `path` is a regular file, not a link, folder, FIFO or device."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Return whether `path` is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def lock_file(handle: int, wait: bool) -> bool:
    """Lock an open file for this process; return False if the file system does not support locks.

    The system releases the lock when the process ends.

    Raises:
        BlockingIOError: If another process holds the lock and `wait` is false.
        OSError: If locking fails for another reason.
    """
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in NO_LOCKS:
            return False
        raise
    return True


@contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Wait for a file lock, hold it inside the block, and remove the file; yield False if the file system lacks locks.

    Missing folders are created as in :func:`created_folder`.
    """
    while True:
        with created_folder(path.parent), path.open("a") as stream:
            has_lock = lock_file(stream.fileno(), wait=True)
            try:
                is_current = os.path.samefile(path, stream.fileno())
            except FileNotFoundError:
                is_current = False
            if not is_current:  # the previous holder has removed the file, so others could lock a new one
                continue
            try:
                yield has_lock
            finally:
                with suppress(OSError):  # Windows can't remove open files
                    path.unlink()
            return


def find_packed(path: Path | str, endings: Sequence[str] = PACKED_ENDINGS) -> Path | None:
    """Return the first file that exists at `path` plus one of the endings, or None."""
    path = Path(path)
    return next((candidate for ending in endings if (candidate := path.with_name(path.name + ending)).is_file()), None)


def current_folder(path: Path | str) -> str:
    """Return a hint that names the folder at which a relative path starts; empty for an absolute path."""
    try:
        return "" if os.path.isabs(path) else f" (relative to {os.getcwd()})"
    except OSError:  # the current folder was deleted
        return ""


def check_file(path: Path | str) -> None:
    """Raise unless a path is a file: reading a FIFO or a device might block or never end.

    Raises:
        InputError: If `path` does not exist or is not a file.
    """
    try:
        mode = os.stat(path).st_mode  # don't open the file: a pipe without a writer would block
    except OSError as error:
        hint = current_folder(path) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: can't be read: {error.strerror or error}{hint}") from error
    except ValueError as error:  # the path contains a null byte or a lone surrogate
        raise InputError(f"{path}: can't be read: no file can have this name") from error
    if stat.S_ISDIR(mode):
        raise InputError(f"{path}: can't be read: {os.strerror(errno.EISDIR)}")
    if not stat.S_ISREG(mode):
        raise InputError(f"{path}: can't be read: expected a file, found a pipe or a device")


def open_file(path: Path | str) -> IO[bytes]:
    """Open a file for reading; raise for pipes and devices, because reading them might block or never end.

    Raises:
        InputError: If the path can't be read or is not a file.
    """
    try:
        if str(path).startswith(OPEN_ALREADY):
            return Path(path).open("rb")
        check_file(path)
        return os.fdopen(os.open(path, os.O_RDONLY | NONBLOCK | getattr(os, "O_BINARY", 0)), "rb")
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


@contextmanager
def input_errors(path: Path | str) -> Iterator[None]:
    """Convert errors of reading and unpacking a file to :class:`~tsallis.errors.InputError`."""
    try:
        with memory_for(f"{path}: its content"):
            yield
    except DAMAGE_ERRORS as error:
        raise InputError(f"{path}: can't be unpacked as {Path(path).suffix}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from error


def digest_file(path: Path | str, algorithm: str = "sha256") -> str:
    """Return the digest of a file's content; raise an InputError if it can't be read."""
    digest = hashlib.new(algorithm, usedforsecurity=False)
    with open_file(path) as stream, input_errors(path):
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read_bytes(path: Path | str, limit: int | None = None) -> bytes:
    """Return the content of a file of at most `limit` bytes; raise an InputError if it can't be read."""
    with open_file(path) as stream, input_errors(path):
        content = stream.read(-1 if limit is None else limit + 1)
    if limit is not None and len(content) > limit:
        raise InputError(f"{path}: expected at most {limit} bytes, found more")
    return content


def read_text(path: Path | str, limit: int | None = None) -> str:
    """Return the content of a UTF-8 file without its byte order mark; raise an InputError if it is not UTF-8."""
    return _decode(without_mark(read_bytes(path, limit)), str(path))


def without_mark(blob: bytes) -> bytes:
    """Return the content of a file without the UTF-8 byte order mark that some editors write at the start."""
    return blob.removeprefix(codecs.BOM_UTF8)


def _decode(blob: bytes, origin: str, place: str = "") -> str:
    try:
        text = blob.decode("utf-8")
    except UnicodeDecodeError as error:
        culprit = f"byte 0x{blob[error.start]:02x}{place.format(error.start)}{_describe_mark(blob)}"
        raise InputError(f"{origin}: expected UTF-8 text, found {culprit}") from error
    if "\0" in text:
        hint = _describe_mark(blob) or "; if the text is UTF-16, save it as UTF-8"
        raise InputError(f"{origin}: expected UTF-8 text, found a null character{hint}")
    return text


def _describe_mark(blob: bytes) -> str:
    return next((f": {description}" for mark, description in MARKS.items() if blob.startswith(mark)), "")


def read_json(path: Path | str) -> dict[str, Any]:
    """Return the JSON object in a file; raise an :class:`~tsallis.errors.InputError` if there is none."""
    blob = read_bytes(path)
    try:
        content = json.loads(without_mark(blob).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a JSON file") from error
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected a JSON object, found {describe(content)}")
    return content


def read_lines(path: Path | str, expected: str = "text") -> Iterator[str]:
    """Yield the lines of a UTF-8 file, which may be compressed (`.gz`, `.xz`); see :func:`decode_lines`.

    Raises:
        InputError: See :func:`decode_lines`, or if the file can't be read or decompressed.
    """
    with open_file(path) as stream, input_errors(path):
        yield from decode_lines(decompress(stream, Path(path)), str(path), expected)


def stream_lines(path: Path | str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file like :func:`read_lines`, but strip white space from both ends."""
    return map(str.strip, read_lines(path))


def decode_lines(
    stream: Stream, name: str, expected: str = "text", skip: Callable[[InputError], object] | None = None
) -> Iterator[str]:
    """Yield the lines of a UTF-8 stream. Only line feeds end a line: fields may contain other line separators.

    A carriage return before a line feed or at the end of the stream belongs to the line end. A UTF-8 byte order mark at
    the start of a line is skipped: joined files can contain several.

    Args:
        stream: Stream of bytes.
        name: Name of the stream, for errors.
        expected: Description of the expected lines, for errors.
        skip: Function that is called with the error of a bad line. The line is then yielded as an empty line. Default:
            raise the error.

    Raises:
        InputError: If there is no line, or a line is not UTF-8 or has more than 16 MiB.
    """
    number = 0
    while line := stream.readline(LONGEST + 1):
        number += 1
        if not (line := without_mark(line)):  # nothing but the mark, at the end of the stream
            number -= 1
            break
        try:
            if len(line) > LONGEST:
                raise InputError(f"{name}:{number}: expected {expected}, found a line of more than {LONGEST} bytes")
            text = _decode(line, f"{name}:{number}", " at byte {} of the line")
        except InputError as error:
            if skip is None:
                raise
            skip(error)
            while not line.endswith(b"\n") and (line := stream.readline(LONGEST)):
                pass
            text = ""
        yield text.removesuffix("\n").removesuffix("\r")
    if number == 0:
        raise InputError(f"{name}: the file is empty, expected lines of {expected}")


@dataclass
class Ignored:
    """Counts of ignored parts of input lines.

    Args:
        blank: Number of blank lines.
        ends: Number of lines with ignored separators at their end.
        answers: Number of lines with ignored right answers.
    """

    blank: int = 0
    ends: int = 0
    answers: int = 0

    def warn(self, name: str) -> None:
        """Warn if anything was ignored; `name` is the name of the input."""
        kinds = {
            "blank lines": self.blank,
            "separators at the end of lines": self.ends,
            "right answers after the first": self.answers,
        }
        if counts := [f"{text} ({count})" for text, count in kinds.items() if count]:
            warnings.warn(f"{name}: ignored {' and '.join(counts)}", IgnoredInputWarning, stacklevel=2)


def number_lines(
    lines: Iterable[str], ignored: Ignored, columns: int = 1, separators: str = ""
) -> Iterator[tuple[int, str]]:
    r"""Yield the non-blank lines with their numbers, counted from 0. Remove ignored characters from line ends.

    Every task and command reads its lines with this function. At the end of a line, the function removes carriage
    returns, white space, separators, and empty columns after the first `columns` columns.

    Args:
        lines: Lines of one input.
        ignored: Counter of ignored parts, which is updated.
        columns: Minimum number of tab-separated columns.
        separators: Characters that separate the parts of the last column.

    Raises:
        InputError: If there are more than 100,000 consecutive blank lines.

    >>> ignored = Ignored()
    >>> list(number_lines(["walk\tV;PST;\t", " ", "run\tV;PST\r"], ignored, columns=2, separators=";"))
    [(0, 'walk\tV;PST'), (2, 'run\tV;PST')]
    >>> ignored
    Ignored(blank=1, ends=1, answers=0)
    """
    num_blank = 0
    for number, line in enumerate(lines):
        if not line.strip():
            ignored.blank += 1
            num_blank += 1
            if num_blank > MAX_BLANK:  # small compressed files could otherwise fill the memory
                raise InputError(f"expected text, found more than {MAX_BLANK} blank lines in a row")
            continue
        num_blank = 0
        fields = line.split("\t")
        while len(fields) > columns and not fields[-1].strip():
            fields.pop()
        last = fields[-1].rstrip()
        stripped = last
        while stripped and stripped[-1] in separators:
            stripped = stripped[:-1].rstrip()
        text = "\t".join([*fields[:-1], stripped or last])
        ignored.ends += text != line.rstrip(" \r")
        yield number, text


def read_examples(
    path: Path | str,
    expected: str,
    numbered: Callable[[Iterable[str], Ignored], Iterator[tuple[int, str]]] = number_lines,
) -> Iterator[tuple[str, str]]:
    """Yield the location (`file:number`) and the text of each line that contains an example.

    Args:
        path: Path of a UTF-8 file, plain, `.gz` or `.xz`.
        expected: Description of the expected lines, for errors.
        numbered: Function that yields each line with an example and the number of this line, counted from 0.

    Raises:
        InputError: See :func:`read_lines`, or if no line has an example.
    """
    ignored, number = Ignored(), None
    for number, line in numbered(read_lines(path, expected), ignored):
        yield f"{path}:{number + 1}", line
    if number is None:
        raise InputError(f"{path}: expected lines of {expected}, found only blank lines, comments or a header")
    ignored.warn(str(path))


def decompress(stream: IO[bytes], path: Path, packing: str | None = None) -> Stream:
    """Return a decompressing stream for "gz" and "xz"; return other streams unchanged.

    Args:
        stream: Open file.
        path: Path of the file.
        packing: Compression format; default: the ending of the path.
    """
    packing = path.suffix[1:] if packing is None else packing
    if packing == "gz":
        return BoundedStream(cast("Stream", gzip.open(stream)), stream, path)
    return BoundedStream(cast("Stream", lzma.open(stream)), stream, path) if packing == "xz" else stream


class BoundedStream:
    """Stream of decompressed bytes, which rejects implausible compression ratios.

    Args:
        stream: Decompressing stream.
        packed: Compressed file.
        path: Path of the file.
    """

    def __init__(self, stream: Stream, packed: IO[bytes], path: Path) -> None:
        self.stream = stream
        self.path = path
        self.size = 0
        self.limit = max(PLAUSIBLE, RATIO * os.fstat(packed.fileno()).st_size)

    def read(self, size: int = -1, /) -> bytes:
        """Read up to `size` bytes and check the compression ratio."""
        return self._check_size(self.stream.read(size))

    def readline(self, size: int = -1, /) -> bytes:
        """Read a line of up to `size` bytes and check the compression ratio."""
        return self._check_size(self.stream.readline(size))

    def _check_size(self, content: bytes) -> bytes:
        self.size += len(content)
        if self.size > self.limit:
            raise TooLarge(f"{self.path}: unpacks to more than {RATIO} times its size, which is too much for text")
        return content
