"""Descriptions of data sets: files, licence and citation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tsallis.toolkit.datasets.download import Part, SourceFile


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
        """Return the languages in the file names: their prefixes, or suffixes for a parallel corpus."""
        return sorted({self.language_of(file.name) for file in self.files})

    def language_of(self, name: str) -> str:
        """Return the language of a file from its name."""
        return name.rpartition(".")[2] if self.parallel else language_of(name)

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of `describe` and the languages, by name; "bytes" is None if a size is unknown."""
        return {
            "name": self.name,
            "title": self.title,
            "licence": self.licence,
            "citation": self.citation,
            "files": len(self.files),
            "without_digest": sum(not _vouched_for(file) for file in self.files),
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
        checked = f", {unknown} of them without a published digest" if unknown else ""
        return [
            f"{self.name}\t{self.title}",
            f"\t{len(self.files)} files{checked}, {size}, licence: {self.licence}",
            f"\tcite: {self.citation}",
        ]


def _vouched_for(file: SourceFile) -> bool:
    """Return whether a digest is known for a file, or for all archives that it is unpacked from."""
    packed = [archive for part in file.parts for archive in part.needs]
    return file.has_digest or (bool(packed) and all(map(_vouched_for, packed)))


def language_of(name: str) -> str:
    """Return the language in a file name of the shared task.

    >>> language_of("norwegian-bokmal-train-high"), language_of("spanish-dev")
    ('norwegian-bokmal', 'spanish')
    """
    return re.sub("-(train-(high|medium|low)|dev|test)$", "", name)


def read_sources() -> dict[str, Source]:
    """Read all data sets from `sources.json`, by name.

    A data set has the fields of :class:`Source`, except that "files" maps names to the fields of :class:`SourceFile`.
    The "archive" and "listed" of a part are keys of "archives". The "urls" of the data set apply to every file and
    archive without addresses and parts; {name} is replaced by its name. A part with "numbers" N is expanded to N parts,
    and {number} in the name of its archive is replaced by 1 to N.

    Raises:
        TypeError: If a field is missing or unknown.
    """
    content = json.loads(files("tsallis.toolkit.datasets").joinpath("sources.json").read_text(encoding="utf-8"))
    return {name: _source(name, **facts) for name, facts in content.items()}


def _source(
    name: str, files: dict[str, Any], archives: dict[str, Any] | None = None, urls: Sequence[str] = (), **facts: Any
) -> Source:
    def make_file(name: str, parts: Sequence[Any] = (), **facts: Any) -> SourceFile:
        addresses = facts.pop("urls", () if parts else urls)
        made = tuple(part for content in parts for part in make_parts(**content))
        return SourceFile(name, tuple(url.replace("{name}", name) for url in addresses), parts=made, **facts)

    def find_archive(name: str) -> SourceFile:
        return make_file(name, **(archives or {}).get(name, {}))

    def make_parts(archive: str, listed: str | None = None, numbers: int = 1, **facts: Any) -> Iterator[Part]:
        names = None if listed is None else find_archive(listed)
        for number in range(1, numbers + 1):
            yield Part(find_archive(archive.replace("{number}", str(number))), listed=names, **facts)

    return Source(name, files=tuple(make_file(file, **content) for file, content in files.items()), **facts)
