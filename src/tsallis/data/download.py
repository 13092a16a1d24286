"""Fetching a known file: what was begun is gone on with, and what arrives is checked before it takes its name."""

from __future__ import annotations

import hashlib
import os
import re
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from tsallis.errors import InputError

CHUNK = 1 << 16
TIMEOUT = 60  # seconds without a byte


@dataclass(frozen=True)
class SourceFile:
    """One file: where it may lie, and what it must be."""

    name: str
    urls: tuple[str, ...]  # tried in order where one is not found
    size: int
    sha256: str


def fetch(file: SourceFile, path: Path) -> Path:
    """One file: there already, gone on with, or fetched whole; it takes its name when its SHA-256 is right.

    What an interrupted transfer left lies beside it as `<name>.part`.

    Raises:
        InputError: no connection, content that is not the known one, or a folder that can't be written.
    """
    try:
        if path.exists():
            if _digest(path) != file.sha256:
                raise InputError(f"{path}: is not the known file (its SHA-256 differs); remove it to fetch it again")
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        # A part of something else shows only at the end, and costs one more transfer, not the data set.
        if not (part.exists() and _complete(file, part)) and not _complete(file, part):
            raise InputError(f"{path}: what arrived is not the known file (its SHA-256 differs); it was thrown away")
        part.replace(path)
    except OSError as error:
        raise InputError(f"{path}: can't be written: {error}") from error
    return path


def _complete(file: SourceFile, part: Path) -> bool:
    """Bring `part` to its full size; one that turns out to be something else is removed."""
    have = _size(part)
    if have > file.size:
        part.unlink()
    if have != file.size:
        _download(file, part)
    if _digest(part) == file.sha256:
        return True
    part.unlink()
    return False


def _download(file: SourceFile, part: Path) -> None:
    for url in file.urls:
        try:
            _stream(url, part, file.size)
            return
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise InputError(f"{url}: the server answered {error.code} {error.reason}") from error
        except (OSError, HTTPException) as error:
            raise InputError(
                f"{url}: {error}; {_size(part)} of {file.size} bytes are kept, the same command goes on from there"
            ) from error
    raise InputError(f"{' and '.join(file.urls)}: not found on the server")


def _stream(url: str, part: Path, size: int) -> None:
    have = _size(part)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        position = _start(answer, url, have, size)
        with part.open("ab" if position else "wb") as stream:
            # Never more than is wanted, whatever the server sends.
            while chunk := answer.read(min(CHUNK, size - position)):
                stream.write(chunk)
                position += len(chunk)
            stream.flush()
            os.fsync(stream.fileno())
    if position < size:
        raise ConnectionError("the connection ended early")


def _start(answer: HTTPResponse, url: str, have: int, size: int) -> int:
    """Where in the file the answer's bytes begin; an answer that can't be the known file is refused unread."""
    if answer.status == 206:
        sent = answer.headers.get("Content-Range", "")
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", sent.strip())
        if not found or int(found[1]) != have or found[2] not in ("*", str(size)):
            raise InputError(f"{url}: expected bytes {have}-{size - 1}/{size} of the file, the server sent {sent!r}")
        return have
    # A server that ignores the range answers 200 and sends everything again.
    length = answer.headers.get("Content-Length")
    if length is not None and length.strip() != str(size):
        raise InputError(f"{url}: expected a file of {size} bytes, the server has {length}")
    return 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
