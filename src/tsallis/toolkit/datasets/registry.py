"""Download of known data sets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tsallis.errors import InputError
from tsallis.toolkit.data.io import locked
from tsallis.toolkit.datasets.archive import Report, fetch_text
from tsallis.toolkit.datasets.download import Part, SourceFile, check, count_lines, fetch, record_of

PACKED_FILE = ".packed"  # folder of downloaded archives, removed after unpacking
LOCK = ".packed.lock"  # lock file, removed at the end


@dataclass(frozen=True)
class Source:
    """Description of a data set that can be downloaded.

    Args:
        name: Name of the data set, for :func:`get`.
        title: One line about the contents.
        licence: Licence of the data.
        citation: Publication to cite.
        files: Files, with their addresses and digests.
        parallel: Whether the files are named `<split>.<language>`, with equal numbers of lines in each split.

    Example:
        >>> from tsallis.toolkit.datasets.registry import SOURCES
        >>> SOURCES["multi30k"].languages()
        ['cs', 'de', 'en', 'fr']
    """

    name: str
    title: str
    licence: str
    citation: str
    files: tuple[SourceFile, ...]
    parallel: bool = False

    @property
    def size(self) -> int:
        """Total number of bytes to download, as far as sizes are known."""
        return sum(size or 0 for size in self._sizes())

    def _sizes(self) -> list[int | None]:
        packed = {a for file in self.files if file.size is None for part in file.parts for a in part.needs}
        return [file.size for file in packed] + [file.size for file in self.files if file.size is not None]

    def languages(self) -> list[str]:
        """Return the languages that the file names contain, sorted."""
        return sorted({self.language_of(file.name) for file in self.files})

    def language_of(self, name: str) -> str:
        """Return the language of a file from its name."""
        return name.rpartition(".")[2] if self.parallel else language_of(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of `describe` and the languages as a dictionary; "bytes" is None if a size is unknown."""
        return {
            "name": self.name,
            "title": self.title,
            "licence": self.licence,
            "citation": self.citation,
            "files": len(self.files),
            "without_digest": sum(not _has_known_digest(file) for file in self.files),
            "bytes": None if None in self._sizes() else self.size,
            "parallel": self.parallel,
            "languages": self.languages(),
        }

    def describe(self) -> list[str]:
        """Return a readable description: title, files, size, licence and citation."""
        size, facts = f"{self.size / 1e6:.1f} MB", self.to_dict()
        if facts["bytes"] is None:
            size = "size not known" if not self.size else f"more than {size}"
        unknown = facts["without_digest"]
        digest_note = f", {unknown} of them without a published digest" if unknown else ""
        return [
            f"{self.name}\t{self.title}",
            f"\t{len(self.files)} files{digest_note}, {size}, licence: {self.licence}",
            f"\tcite: {self.citation}",
        ]


def _has_known_digest(file: SourceFile) -> bool:
    """Return whether a digest is known for a file or for all of its archives."""
    packed = [archive for part in file.parts for archive in part.needs]
    return file.has_digest or (bool(packed) and all(map(_has_known_digest, packed)))


def language_of(name: str) -> str:
    """Return the language in a file name of a shared task; return other names unchanged.

    >>> language_of("norwegian-bokmal-train-high"), language_of("mlt_latn_dev.tsv"), language_of("deu.trn")
    ('norwegian-bokmal', 'mlt_latn', 'deu')
    """
    return re.sub(r"(-(train-(high|medium|low)|dev|test)|_(train|dev|test)\.tsv|\.(trn|dev|tst))$", "", name)


def read_sources() -> dict[str, Source]:
    """Read all data sets from `sources.json`, by name.

    A data set has the fields of :class:`Source`, except that "files" maps names to the fields of :class:`SourceFile`.
    The fields "archive" and "listed" of a part are keys of "archives". The "urls" of the data set apply to every file
    and archive without addresses and parts; {name} is replaced by the name of the file or archive. A part with
    "numbers" N stands for N parts, and {number} in the name of its archive is replaced by 1 to N.

    Raises:
        TypeError: If a field is missing or unknown.
    """
    content = json.loads(files("tsallis.toolkit.datasets").joinpath("sources.json").read_text(encoding="utf-8"))
    return {name: _make_source(name, **facts) for name, facts in content.items()}


def _make_source(
    name: str, files: dict[str, Any], archives: dict[str, Any] | None = None, urls: Sequence[str] = (), **facts: Any
) -> Source:
    def make_file(name: str, parts: Sequence[Any] = (), **facts: Any) -> SourceFile:
        addresses = facts.pop("urls", () if parts else urls)
        file_parts = tuple(part for content in parts for part in make_parts(**content))
        return SourceFile(name, tuple(url.replace("{name}", name) for url in addresses), parts=file_parts, **facts)

    def find_archive(name: str) -> SourceFile:
        return make_file(name, **(archives or {}).get(name, {}))

    def make_parts(archive: str, listed: str | None = None, numbers: int = 1, **facts: Any) -> Iterator[Part]:
        names = None if listed is None else find_archive(listed)
        for number in range(1, numbers + 1):
            yield Part(find_archive(archive.replace("{number}", str(number))), listed=names, **facts)

    return Source(name, files=tuple(make_file(file, **content) for file, content in files.items()), **facts)


SOURCES = read_sources()


def get(
    name: str, folder: Path | str, languages: Sequence[str] | None = None, report: Report | None = None
) -> list[Path]:
    """Download a data set, or some of its languages, into a folder. Existing files are only checked.

    If another process downloads into the same folder, the function waits for it.

    Args:
        name: Name of the data set in :data:`SOURCES`.
        folder: Folder, which is created if it is missing.
        languages: Languages to download, or file names if the data set has no languages; None: all.
        report: Function that is called with address and size of each archive before its download.

    Returns:
        The paths of the files.

    Raises:
        InputError: If the name or a language is unknown, there is no connection, content is wrong, the folder can't be
            written, or the sides of a parallel corpus have different numbers of lines.

    Example:
        >>> get("multi30k", "data/multi30k", ["de", "en"])  # doctest: +SKIP
    """
    if name not in SOURCES:
        raise InputError(f"unknown data set {name!r}, expected one of {', '.join(SOURCES)}")
    source, folder = SOURCES[name], Path(folder)
    names = source.languages()
    unknown = [language for language in languages or () if language not in names]
    if unknown:
        kind = "file" if names == sorted(f.name for f in source.files) else "language"
        raise InputError(f"{name} has no {kind} {', '.join(map(repr, unknown))}; it has {', '.join(names)}")
    files = [f for f in source.files if languages is None or source.language_of(f.name) in languages]
    packed = folder / PACKED_FILE
    present = [file for file in files if (folder / file.name).exists()]
    for file in present:  # check existing files before the first write
        check(file, folder / file.name)
    if source.parallel:
        check_sides([folder / file.name for file in present])
    if any(file.holds == "images" and file not in present for file in files):
        from tsallis.toolkit.data.images import require_pillow

        require_pillow(name)
    paths = [folder / file.name for file in files]
    if len(present) == len(files) and not packed.exists():  # the folder may be read-only
        return paths
    try:
        with locked(folder / LOCK):
            for file, path in zip(files, paths, strict=True):
                fetch_text(file, path, packed, report) if file.parts else fetch(file, path)
            if source.parallel:
                check_sides(paths)
            _remove_archives(packed, [a for file in files for part in file.parts for a in part.needs])
    except OSError as error:
        raise InputError(f"{folder}: can't be written: {error}") from error
    return paths


def check_sides(paths: Sequence[Path]) -> None:
    """Raise if files that differ only in language have different numbers of lines.

    Raises:
        InputError: If the numbers of lines differ.
    """
    counts: dict[str, tuple[Path, int]] = {}
    for path in paths:
        lines = count_lines(path)
        other, expected = counts.setdefault(path.stem, (path, lines))
        if lines != expected:
            raise InputError(
                f"{path}: {lines} lines, but {other.name} has {expected}; delete both to download them again"
            )


def _remove_archives(packed: Path, archives: Sequence[SourceFile]) -> None:
    """Remove unpacked archives, and their folder unless it contains other files."""
    for archive in archives:
        for path in (packed / archive.name, record_of(packed / archive.name)):
            path.unlink(missing_ok=True)
    if packed.is_dir() and not any(packed.iterdir()):
        packed.rmdir()
