"""Known data sets and how to fetch them: what was begun is gone on with, and what arrives is checked."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import files
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


def fetch(file: SourceFile, path: Path) -> Path:
    """One file: there already, gone on with, or fetched whole; it takes its name when its SHA-256 is right."""
    if path.exists():
        if _digest(path) != file.sha256:
            raise InputError(f"{path}: is not the known file (its SHA-256 differs); remove it to fetch it again")
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    if part.exists() and part.stat().st_size > file.size:
        part.unlink()
    if not part.exists() or part.stat().st_size < file.size:
        _download(file, part)
    if _digest(part) != file.sha256:
        part.unlink()
        raise InputError(f"{path}: what arrived is not the known file (its SHA-256 differs); it was thrown away")
    part.replace(path)
    return path


def _download(file: SourceFile, part: Path) -> None:
    missing = ""
    for url in file.urls:
        try:
            _stream(url, part, file.size)
            return
        except urllib.error.HTTPError as error:
            if error.code != 404:
                raise InputError(f"{url}: the server answered {error.code} {error.reason}") from error
            missing = url
        except (OSError, HTTPException) as error:
            kept = part.stat().st_size if part.exists() else 0
            raise InputError(
                f"{url}: {error}; {kept} of {file.size} bytes are kept, the same command goes on from there"
            ) from error
    raise InputError(f"{missing}: not found on the server")


def _stream(url: str, part: Path, size: int) -> None:
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        # A server that ignores the range answers 200 and sends everything again.
        mode = "ab" if answer.status == 206 else "wb"
        with part.open(mode) as stream:
            while chunk := answer.read(CHUNK):
                stream.write(chunk)
    if part.stat().st_size < size:
        raise ConnectionError("the connection ended early")


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
