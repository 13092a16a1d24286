"""Known data sets, and how they are fetched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.datasets.archive import Report, fetch_text
from tsallis.toolkit.datasets.download import SourceFile, count_lines, fetch, record_of, verify
from tsallis.toolkit.datasets.source import read_sources

PACKED_FILE = ".packed"  # what texts are unpacked from, until they all are
SOURCES = read_sources()


def get(
    name: str, folder: Path | str, languages: Sequence[str] | None = None, report: Report | None = None
) -> list[Path]:
    """Fetch a data set into a folder, all of it or some languages; files that are there already are checked alone.

    Args:
        name: of one of :data:`SOURCES`.
        folder: which is made if it is missing.
        languages: of the files; file names, where a data set has no languages; None: all.
        report: called with the address and the size of an archive before it is transferred.

    Returns:
        The paths of the files.

    Raises:
        InputError: an unknown name or language, no connection, content that is not the known one, or sides of a
            parallel corpus with different numbers of lines.

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
        verify(file, folder / file.name)
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
    """Files that differ in their language alone must have equally many lines.

    Raises:
        InputError: they have not.
    """
    counts: dict[str, tuple[Path, int]] = {}
    for path in paths:
        lines = count_lines(path)
        other, expected = counts.setdefault(path.stem, (path, lines))
        if lines != expected:
            raise InputError(f"{path}: {lines} lines, but {other.name} has {expected}; remove both to fetch them again")


def _clear(packed: Path, archives: Sequence[SourceFile]) -> None:
    """Remove what was unpacked; the folder too, unless it holds something else."""
    for archive in archives:
        for path in (packed / archive.name, record_of(packed / archive.name)):
            path.unlink(missing_ok=True)
    if packed.is_dir() and not any(packed.iterdir()):
        packed.rmdir()
