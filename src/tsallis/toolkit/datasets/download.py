"""Download known files: resume partial downloads, and check files before renaming them."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import Literal

from tsallis.errors import InputError
from tsallis.toolkit.data.io import created_folder, digest_file, write_atomic

CHUNK = 1 << 16
TIMEOUT = 60  # maximum number of seconds without data
VERSION = ".version"  # ending of the file with the server's name of the version of a partial file


@dataclass(frozen=True)
class SourceFile:
    """Description of a file to download: its addresses and its digests, if known.

    If no digest is known, the first download writes its digest to `<name>.sha256`, and later downloads must match it.
    """

    name: str
    urls: tuple[str, ...] = ()  # addresses, tried in order
    size: int | None = None
    sha256: str | None = None
    md5: str | None = None  # digest for files whose publishers give no SHA-256
    lines: int | None = None
    parts: tuple[Part, ...] = ()  # parts to concatenate, for files without an address
    holds: Literal["lines", "images", "files"] = "lines"  # images are stored in a NumPy array, files in a tar file
    header: str = ""  # first line, added by this package

    @property
    def has_digest(self) -> bool:
        """Whether the publishers give a digest."""
        return bool(self.sha256 or self.md5)


@dataclass(frozen=True)
class Part:
    """Part of a file: the archive, the member to read from it, and the selection of lines."""

    archive: SourceFile
    packing: Literal["plain", "gz", "xz", "tar", "zip", "tar-folder"]
    member: str | None = None  # exact name in a tar or zip file; for a tar-folder, a pattern of names
    form: Literal["lines", "segments", "talks", "clusters", "labelled", "pairs", "questions", "reviews", "patients"] = (
        "lines"
    )
    every: int = 0  # n selects every nth line, -n selects all other lines, 0 selects all lines
    split: str = ""  # split to read if the form is "clusters": train, dev or test
    column: int = 0  # side of the pairs to read if the form is "clusters": 0 or 1
    count: int | None = None  # expected number of members of a tar-folder
    listed: SourceFile | None = None  # file with the names of the required images

    @property
    def needs(self) -> tuple[SourceFile, ...]:
        """The files to download for this part."""
        return (self.archive,) if self.listed is None else (self.archive, self.listed)


def fetch(file: SourceFile, path: Path) -> Path:
    """Download a file, resume its download, or check the existing file; return its path.

    An interrupted download is kept as `<name>.part`. The file gets its final name after it is checked.

    Raises:
        InputError: If there is no connection, the content is wrong, or the folder can't be written.
    """
    try:
        if path.exists():
            check(file, path)
            return path
        with created_folder(path.parent):
            part = path.with_name(path.name + ".part")
            # A wrong partial file is detected only when it is complete. Then download once more from the start.
            if not (part.exists() and _finish_part(file, part, path)) and not _finish_part(file, part, path):
                raise InputError(
                    f"{path}: the download differs from {known(file, path)} (wrong checksum); it was deleted"
                )
            take_name(file, part, path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error}") from error
    return path


def check(file: SourceFile, path: Path) -> None:
    """Check the digest of an existing file. If no digest is known, check the number of lines and record the digest.

    Raises:
        InputError: If the digest or the number of lines differs.
    """
    if not same_digest(file, path, path):
        raise InputError(f"{path}: differs from {known(file, path)} (wrong checksum); delete it to download it again")
    if not file.has_digest and not record_of(path).exists():  # the user provided the file
        if file.lines is not None and (count := count_lines(path)) != file.lines:
            raise InputError(f"{path}: expected {file.lines} lines, found {count}; delete it to download it again")
        write_record(path, digest_file(path))


def take_name(file: SourceFile, part: Path, path: Path) -> None:
    """Move a complete and checked file to its path. If no digest is published, record the digest first."""
    if not file.has_digest:
        write_record(path, digest_file(part))
    _version_of(part).unlink(missing_ok=True)
    part.replace(path)


def known(file: SourceFile, path: Path) -> str:
    return "the known file" if file.has_digest else f"the file that {record_of(path).name} describes"


def same_digest(file: SourceFile, candidate: Path, path: Path) -> bool:
    """Return whether `candidate` has the digest for `path`; True if no digest is published or recorded."""
    if file.md5 is not None:
        return digest_file(candidate, "md5") == file.md5
    record = record_of(path)
    if file.sha256 is None and not record.exists():
        return True
    return digest_file(candidate) == (file.sha256 or record.read_text(encoding="utf-8").split(" ")[0])


def record_of(path: Path) -> Path:
    return path.with_name(path.name + ".sha256")


def write_record(path: Path, digest: str) -> None:
    """Write the digest beside the file, in the format that `sha256sum --check` reads."""
    write_atomic(record_of(path), f"{digest}  {path.name}\n")


def count_lines(path: Path) -> int:
    with path.open("rb") as stream:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: stream.read(CHUNK), b""))


def _finish_part(file: SourceFile, part: Path, path: Path) -> bool:
    """Download the rest of `part` and return whether its content is correct; remove a wrong file."""
    downloaded = _file_size(part)
    if file.size is not None and downloaded > file.size:
        _remove_part(part)
    if downloaded != file.size:
        _download(file, part)
    if same_digest(file, part, path):
        return True
    _remove_part(part)
    return False


def _download(file: SourceFile, part: Path) -> None:
    for url in file.urls:
        try:
            _download_from(file, url, part)
            return
        except urllib.error.HTTPError as error:
            if error.code == 416 and file.size is None and part.exists():
                # The server has no more bytes: the partial file is complete or wrong; download it again.
                _remove_part(part)
                return _download(file, part)
            if error.code != 404:
                raise InputError(f"{url}: the server answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            progress = f"{_file_size(part)} of {file.size or 'an unknown number of'} bytes are kept"
            raise InputError(
                f"{url}: {error}; {progress}; run the same command again to resume the download"
            ) from error
    raise InputError(f"{' and '.join(file.urls)}: not found on the server")


def _download_from(file: SourceFile, url: str, part: Path) -> None:
    downloaded, size, version = _file_size(part), file.size, _version_of(part)
    headers = {"Range": f"bytes={downloaded}-"} if downloaded else {}
    if downloaded and version.exists() and (text := version.read_text(encoding="utf-8")):
        headers["If-Range"] = text  # if the server has another version, it sends the whole file
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        content_range = response.headers.get("Content-Range", "")
        if response.status == 206 and not content_range.startswith(f"bytes {downloaded}-"):
            raise InputError(
                f"{url}: expected the bytes from {downloaded} to the end of the file, found the range {content_range!r}"
            )
        # If a server ignores the range, it sends the whole file again.
        position = downloaded if response.status == 206 else 0
        length = response.headers.get("Content-Length", "")
        end = position + int(length) if length.isdecimal() else size
        with part.open("ab" if position else "wb") as stream:
            if not position and not file.has_digest:
                _write_version(version, response.headers)
            # Limit the download to the expected size, even if the server sends more.
            while chunk := response.read(CHUNK if size is None else min(CHUNK, size - position)):
                stream.write(chunk)
                position += len(chunk)
            stream.flush()
            os.fsync(stream.fileno())
    if position < (end or 0) and position != size:
        raise ConnectionError("the connection ended early")


def _version_of(part: Path) -> Path:
    return part.with_name(part.name + VERSION)


def _write_version(path: Path, headers: HTTPMessage) -> None:
    tag = headers.get("ETag", "")  # weak tags, which begin with W/, can't be used for ranges
    path.write_text(tag if tag.startswith('"') else headers.get("Last-Modified", ""), encoding="utf-8")


def _remove_part(part: Path) -> None:
    part.unlink()
    _version_of(part).unlink(missing_ok=True)


def _file_size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
