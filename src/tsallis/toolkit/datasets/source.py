"""The description of a data set: its files, licence and citation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from tsallis.toolkit.datasets.download import Part, SourceFile


@dataclass(frozen=True)
class Source:
    """A data set that can be fetched.

    Args:
        name: by which :func:`get` knows it.
        title: one line about its contents.
        licence: of the data.
        citation: the publication to cite.
        files: with their addresses and digests.
        parallel: whether the files are named `<split>.<language>`, with equal numbers of lines in each split.

    Example:
        >>> from tsallis.toolkit.datasets import SOURCES
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
        """The bytes of its files, or of the archives that they are unpacked from, as far as they are known."""
        return sum(file.size or 0 for file in self._weighed())

    def _weighed(self) -> set[SourceFile]:
        packed = {a for file in self.files if file.size is None for part in file.parts for a in part.needs}
        return packed | {file for file in self.files if file.size is not None}

    def languages(self) -> list[str]:
        """Return the languages in the files' names: their prefixes or, of a parallel corpus, their suffixes."""
        return sorted({self.language_of(file.name) for file in self.files})

    def language_of(self, name: str) -> str:
        """Return the language of one of its files."""
        return name.rpartition(".")[2] if self.parallel else language_of(name)

    def to_dict(self) -> dict[str, Any]:
        """Return what `describe` says, and the languages, by name; "bytes" is None where some are not known."""
        return {
            "name": self.name,
            "title": self.title,
            "licence": self.licence,
            "citation": self.citation,
            "files": len(self.files),
            "without_digest": sum(not _vouched_for(file) for file in self.files),
            "bytes": None if any(file.size is None for file in self._weighed()) else self.size,
            "parallel": self.parallel,
            "languages": self.languages(),
        }

    def describe(self) -> list[str]:
        """Return lines for a reader: title, files, size, licence and citation."""
        size = f"{self.size / 1e6:.1f} MB"
        if any(file.size is None for file in self._weighed()):
            size = "size not known" if not self.size else f"more than {size}"
        unknown = sum(not _vouched_for(file) for file in self.files)
        checked = f", {unknown} of them without a published digest" if unknown else ""
        return [
            f"{self.name}\t{self.title}",
            f"\t{len(self.files)} files{checked}, {size}, licence: {self.licence}",
            f"\tcite: {self.citation}",
        ]


def _vouched_for(file: SourceFile) -> bool:
    """Tell whether a digest is published of a file, or of everything it is unpacked from."""
    digests = file.sha256 or file.md5
    return bool(digests) or (bool(file.parts) and all(_vouched_for(a) for part in file.parts for a in part.needs))


def language_of(name: str) -> str:
    """Return the language in the name of a file of the shared task.

    >>> language_of("norwegian-bokmal-train-high"), language_of("spanish-dev")
    ('norwegian-bokmal', 'spanish')
    """
    for ending in ("-train-high", "-train-medium", "-train-low", "-dev", "-test"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def table(name: str) -> list[list[str]]:
    """Return the rows of a table that is part of the package."""
    text = files("tsallis.toolkit.datasets").joinpath(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.split("\n")[:-1]]


def remote(url: str, size: int | None = None, sha256: str | None = None, md5: str | None = None) -> SourceFile:
    """Return a file that is named as the end of its address.

    >>> remote("https://example.org/a/b.txt").name
    'b.txt'
    """
    return SourceFile(url.rpartition("/")[2], (url,), size, sha256, md5)


def unpack(name: str, lines: int | None, parts: Iterable[Part]) -> SourceFile:
    """Return a text without a published digest."""
    return SourceFile(name, lines=lines, parts=tuple(parts))
