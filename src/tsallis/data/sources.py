"""Known data sets: where their files lie, and what they must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from tsallis.data.download import SourceFile, fetch
from tsallis.errors import InputError


@dataclass(frozen=True)
class Source:
    """A data set."""

    name: str
    title: str
    licence: str
    citation: str
    files: tuple[SourceFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def languages(self) -> list[str]:
        """What the files' names begin with."""
        return sorted({language_of(file.name) for file in self.files})


def language_of(name: str) -> str:
    """
    >>> language_of("norwegian-bokmal-train-high"), language_of("spanish-dev")
    ('norwegian-bokmal', 'spanish')
    """
    for ending in ("-train-high", "-train-medium", "-train-low", "-dev", "-test"):
        if name.endswith(ending):
            return name.removesuffix(ending)
    return name


def _sigmorphon2018() -> Source:
    commit = "490e2e0693241f708670d9d1c56803b754fab7cd"
    base = f"https://raw.githubusercontent.com/sigmorphon/conll2018/{commit}/task1"
    table = files("tsallis.data").joinpath("sigmorphon2018.tsv").read_text(encoding="utf-8")
    entries = []
    for line in table.split("\n")[:-1]:
        name, size, sha256 = line.split("\t")
        # The ten surprise languages of the task have a folder of their own.
        entries.append(SourceFile(name, (f"{base}/all/{name}", f"{base}/surprise/{name}"), int(size), sha256))
    return Source(
        "sigmorphon2018",
        "CoNLL-SIGMORPHON 2018, task 1: inflection in 95 languages, high, medium and low settings",
        "derived from UniMorph (CC BY-SA)",
        "Cotterell et al. 2018, The CoNLL-SIGMORPHON 2018 shared task: Universal morphological reinflection",
        tuple(entries),
    )


SOURCES = {source.name: source for source in (_sigmorphon2018(),)}


def get(name: str, folder: Path | str, languages: Sequence[str] | None = None) -> list[Path]:
    """Fetch a data set into a folder, all of it or some languages; files that are there already are checked alone.

    Raises:
        InputError: an unknown name or language, no connection, or content that is not the known one.
    """
    if name not in SOURCES:
        raise InputError(f"unknown data set {name!r}, known: {', '.join(SOURCES)}")
    source = SOURCES[name]
    known = source.languages()
    wrong = [language for language in languages or () if language not in known]
    if wrong:
        raise InputError(f"{name} has no language {', '.join(map(repr, wrong))}; it has {', '.join(known)}")
    wanted = [f for f in source.files if languages is None or language_of(f.name) in languages]
    return [fetch(file, Path(folder) / file.name) for file in wanted]
