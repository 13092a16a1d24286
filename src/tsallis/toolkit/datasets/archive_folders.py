"""Conversion of folders of small files in an archive to one file: lines, an array of images, or a tar file."""

from __future__ import annotations

import gzip
import lzma
import re
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from tsallis.toolkit.datasets.converters import CorruptDownloadError
from tsallis.toolkit.datasets.download import Part, SourceFile

SIGNATURE = b"\x89PNG\r\n\x1a\n"
LONGEST = 1 << 20  # maximum bytes of a line or a small file; larger input is rejected as a wrong file
Make = Callable[[re.Match[str], bytes, str], Iterator[bytes]]


def read_folder(part: Part, path: Path, make: Make) -> Iterator[bytes]:
    """Yield the lines of all members whose names match, by what the pattern's groups say: numbers in numerical order.

    The archive is read once, as a stream; what its members hold is in memory until they are in order.
    """
    contents = {key: b"\n".join(make(name, content, where)) for key, name, content, where in _members(part, path)}
    for key in sorted(contents):
        if lines := contents.pop(key):
            yield from lines.split(b"\n")


def _members(part: Part, path: Path) -> Iterator[tuple[tuple[int | str, ...], re.Match[str], bytes, str]]:
    """Yield the sort key, name match, content and location of each member of a folder that matches."""
    pattern = re.compile(part.member or "")
    keys = set()
    with open_tar(path) as stream, tarfile.open(fileobj=stream, mode="r|") as tar:
        for member in tar:
            tar.members = []  # type: ignore[attr-defined]  # free the memory: tarfile keeps all members
            name = pattern.fullmatch(member.name)
            content = tar.extractfile(member) if name is not None and member.isreg() else None
            if name is None or content is None:
                continue
            where = f"{path.name}: {member.name}"
            key = tuple(int(group) if group.isdecimal() else group for group in name.groups())
            if key in keys:
                raise CorruptDownloadError(f"{where}: is there twice")
            if member.size > LONGEST:
                raise CorruptDownloadError(f"{where}: expected at most {LONGEST} bytes, found {member.size}")
            keys.add(key)
            yield key, name, content.read(), where
        # Read to the end, so that the checksum is verified: tarfile does not report truncated archives.
        while stream.read(LONGEST):
            pass
    if part.count not in (None, len(keys)):
        raise CorruptDownloadError(f"{path.name}: expected {part.count} files {part.member}, found {len(keys)}")


def open_tar(path: Path) -> IO[bytes]:
    """Return the tar file in an archive, packed with gzip or xz, or as it is.

    The gzip reader of tarfile does not detect truncated headers.
    """
    with path.open("rb") as stream:
        start = stream.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(path, "rb"))
    return cast("IO[bytes]", lzma.open(path, "rb")) if start == b"\xfd7zXZ\0" else path.open("rb")


def write_images(part: Part, path: Path, archive: Path) -> None:
    """Write the PNG files numbered 0, 1, ... as one array [images, height, width, 3] of uint8, in NumPy's format."""
    import numpy as np  # imported here, because listing data sets does not need it

    from tsallis.toolkit.data.images import BadPicture, decode_picture

    images = {}
    for key, _, content, where in _members(part, archive):
        try:
            images[key] = decode_picture(content, where)
        except BadPicture as error:
            raise CorruptDownloadError(str(error)) from error
    if sorted(images) != [(number,) for number in range(len(images))]:
        raise CorruptDownloadError(f"{archive.name}: expected images numbered from 0 to {len(images) - 1}")
    if len(shapes := {image.shape for image in images.values()}) != 1:
        raise CorruptDownloadError(f"{archive.name}: expected images of one size, found {sorted(shapes)[:3]}")
    with path.open("wb") as stream:
        np.save(stream, np.stack([images[key] for key in sorted(images)]))


def write_files(file: SourceFile, path: Path, packed: Path) -> None:
    """Write PNG files, as they are, into one tar file whose bytes depend on them alone."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for part in file.parts:
            source = packed / part.archive.name
            with source.open("rb") as stream:
                if stream.read(len(SIGNATURE)) != SIGNATURE:
                    raise CorruptDownloadError(f"{part.archive.urls[0]}: is not a PNG file", part.archive)
                stream.seek(0)
                member = tarfile.TarInfo(part.archive.name)
                member.size = source.stat().st_size
                tar.addfile(member, stream)
