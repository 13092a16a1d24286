"""Download of known data sets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.datasets.archive import Report, fetch_text
from tsallis.toolkit.datasets.download import SourceFile, check, count_lines, fetch, record_of
from tsallis.toolkit.datasets.source import read_sources

PACKED_FILE = ".packed"  # folder of downloaded archives, removed after unpacking
SOURCES = read_sources()


def get(
    name: str, folder: Path | str, languages: Sequence[str] | None = None, report: Report | None = None
) -> list[Path]:
    """Download a data set, or some of its languages, into a folder. Existing files are only checked.

    Args:
        name: Name of the data set in :data:`SOURCES`.
        folder: Folder, which is created if it is missing.
        languages: Languages to download, or file names if the data set has no languages; None: all.
        report: Function that is called with address and size of each archive before its download.

    Returns:
        The paths of the files.

    Raises:
        InputError: If the name or a language is unknown, there is no connection, content is wrong, or the sides of a
            parallel corpus have different numbers of lines.

    Example:
        >>> get("multi30k", "data/multi30k", ["de", "en"])  # doctest: +SKIP
    """
    if name not in SOURCES:
        raise InputError(f"unknown data set {name!r}, known: {', '.join(SOURCES)}")
    source, folder = SOURCES[name], Path(folder)
    names = source.languages()
    unknown = [language for language in languages or () if language not in names]
    if unknown:
        what = "file" if names == sorted(f.name for f in source.files) else "language"
        raise InputError(f"{name} has no {what} {', '.join(map(repr, unknown))}; it has {', '.join(names)}")
    files = [f for f in source.files if languages is None or source.language_of(f.name) in languages]
    packed = folder / PACKED_FILE
    present = [file for file in files if (folder / file.name).exists()]
    for file in present:  # before the first write
        check(file, folder / file.name)
    if source.parallel:
        check_sides([folder / file.name for file in present])
    paths = []
    for file in files:
        path = folder / file.name
        paths.append(fetch_text(file, path, packed, report) if file.parts else fetch(file, path))
    if source.parallel:
        check_sides(paths)
    _clear(packed, [a for file in files for part in file.parts for a in part.needs])
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
            raise InputError(f"{path}: {lines} lines, but {other.name} has {expected}; remove both to fetch them again")


def _clear(packed: Path, archives: Sequence[SourceFile]) -> None:
    """Remove unpacked archives, and their folder unless it contains other files."""
    for archive in archives:
        for path in (packed / archive.name, record_of(packed / archive.name)):
            path.unlink(missing_ok=True)
    if packed.is_dir() and not any(packed.iterdir()):
        packed.rmdir()
