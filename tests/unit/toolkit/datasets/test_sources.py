"""The registry of data sets is complete, has permanent addresses, and matches the published files."""

from __future__ import annotations

import hashlib
import re
import tarfile
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from tsallis.toolkit.datasets.download import SourceFile
from tsallis.toolkit.datasets.paraphrase_split import LARGEST, _bare, split_pairs
from tsallis.toolkit.datasets.registry import SOURCES

from .conftest import unpacked

PARALLEL = {
    "multi30k": {"cs", "de", "en", "fr"},
    "kftt": {"en", "ja"},
    "tatoeba-de-en": {"de", "en"},
    "iwslt14-de-en": {"de", "en"},
    "iwslt17-de-en": {"de", "en"},
    "wmt16-ro-en": {"en", "ro"},
    "wmt14-en-de": {"de", "en"},
}


def transferred(name: str) -> set[SourceFile]:
    return {a for f in SOURCES[name].files for a in ([a for part in f.parts for a in part.needs] or [f])}


@pytest.mark.parametrize("name", SOURCES)
def test_registry_entries_are_complete(name: str) -> None:
    source = SOURCES[name]
    assert source.name == name and source.licence and source.citation and source.title
    assert len({file.name for file in source.files}) == len(source.files)
    TypeAdapter(type(source)).validate_python(asdict(source))
    lines = source.describe()
    assert len(lines) == 3 and source.licence in lines[1] and source.citation in lines[2]
    for file in source.files:
        assert re.fullmatch(r"[\w.-]+", file.name) and bool(file.urls) != bool(file.parts)
        assert file.sha256 is None or re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.sha256 is None or file.size is not None
        assert all(part.count for part in file.parts if part.packing == "tar-folder")
    archives = transferred(name)
    assert len({archive.name for archive in archives}) == len(archives)
    for archive in archives:
        assert archive.urls and all(url.startswith("https://") for url in archive.urls)
        assert archive.sha256 is None or re.fullmatch("[0-9a-f]{64}", archive.sha256)
        assert archive.md5 is None or re.fullmatch("[0-9a-f]{32}", archive.md5)
        # Files of a commit can't change; files of a branch can.
        assert all("github" not in url or re.search("/[0-9a-f]{40}(/|$)", url) for url in archive.urls)


@pytest.mark.parametrize("name", PARALLEL)
def test_parallel_corpora_have_every_split_on_every_side(name: str) -> None:
    source = SOURCES[name]
    assert source.parallel and set(source.languages()) == PARALLEL[name]
    splits = Counter(file.name.rpartition(".")[0] for file in source.files)
    assert set(splits.values()) == {len(PARALLEL[name])}
    assert len(splits) >= 3 and any("train" in split for split in splits)
    for split in splits:
        sides = [f for f in source.files if f.name.startswith(f"{split}.")]
        assert len({f.lines for f in sides}) == 1
        # All sides are made in the same way, each from files of its language.
        made = [[(p.archive if p.packing != "gz" else 0, p.packing, p.form, p.every) for p in f.parts] for f in sides]
        assert all(m == made[0] for m in made)
        for file in sides:
            for part in file.parts:
                if part.member and part.form != "clusters":
                    ending = part.member.removesuffix(".sgm").removesuffix(".xml")
                    assert ending.endswith(f".{source.language_of(file.name)}")


def test_iwslt14_holds_out_every_23rd_line_for_dev() -> None:
    files = {f.name: f for f in SOURCES["iwslt14-de-en"].files}
    for side in ("de", "en"):
        (train,), (dev,) = files[f"train.{side}"].parts, files[f"dev.{side}"].parts
        assert train.every == -dev.every == -23 and train.member == dev.member


@pytest.mark.parametrize(
    ("name", "archive", "languages"),
    [
        ("sigmorphon2021-g2p", "sigmorphon2021_g2p/g2p.tar.xz", 21),
        ("sigmorphon2023-inflection", "sigmorphon2023_inflection/inflection.tar.xz", 27),
    ],
)
def test_sigmorphon_entries_match_the_shared_copies(name: str, archive: str, languages: int, shared_data: Path) -> None:
    source = SOURCES[name]
    assert len(source.languages()) == languages and len(source.files) == 3 * languages
    if not (shared_data / archive).is_file():
        pytest.skip(f"needs data: {shared_data / archive}")
    known = {file.name: file.sha256 for file in source.files}
    with tarfile.open(shared_data / archive) as tar:
        for member in (member for member in tar if member.isfile()):
            stream = tar.extractfile(member)
            assert stream is not None
            assert hashlib.sha256(stream.read()).hexdigest() == known[Path(member.name).name]


def test_sigmorphon2018_sizes_and_digests_match_the_files(shared_data: Path) -> None:
    archive = shared_data / "sigmorphon2018_task1" / "task1.tar.xz"
    if not archive.is_file():
        pytest.skip(f"needs data: {archive}")
    result = {}
    with tarfile.open(archive) as tar:
        for member in tar:
            stream = tar.extractfile(member)
            if stream is not None and not member.name.endswith("-covered-test"):
                data = stream.read()
                result[Path(member.name).name] = (len(data), hashlib.sha256(data).hexdigest())
    assert {f.name: (f.size, f.sha256) for f in SOURCES["sigmorphon2018"].files} == result


COPIES = [
    *(("multi30k", file.name, f"multi30k/raw/{file.name}") for file in SOURCES["multi30k"].files),
    *(("wmt16-ro-en", f"newsdev2016.{side}", f"wmt_eval_only/newsdev2016.{side}") for side in ("ro", "en")),
    *(("kftt", f"kyoto-{name}", f"kftt/kyoto-{name}") for name in ("dev.ja", "dev.en", "test.ja", "test.en")),
    *(("iwslt14-de-en", f"test.{side}", f"iwslt14_deen_eval_only/test.{side}") for side in ("de", "en")),
]


@pytest.mark.parametrize(("source", "name", "copy"), COPIES)
def test_sizes_and_digests_match_the_shared_copies(shared_data: Path, source: str, name: str, copy: str) -> None:
    text = unpacked(shared_data / f"{copy}.xz")
    (known,) = (file for file in SOURCES[source].files if file.name == name)
    assert text.count(b"\n") == known.lines
    assert known.sha256 is None or (len(text), hashlib.sha256(text).hexdigest()) == (known.size, known.sha256)


def test_splits_of_paraphrases_share_no_sentence() -> None:
    pairs = [(f"Say {n // 3}.", f"Sag {n // 2}!") for n in range(60)] + [("Say  99.", "Sag 99!")] * 2
    pairs += [(f"Run {n}.", "Lauf!") for n in range(LARGEST + 1)] + [("go 1", "Geh"), ("Go 1!", "geh.")]
    splits = split_pairs(pairs, held_out=5)
    clean = list(dict.fromkeys((" ".join(first.split()), second) for first, second in pairs))
    assert sum(map(len, splits.values())) == len(clean) < len(pairs)
    for side in (0, 1):
        sentences = [{_bare(pair[side]) for pair in split} for split in splits.values()]
        assert not (sentences[0] & sentences[1] or sentences[0] & sentences[2] or sentences[1] & sentences[2])
    assert all(5 <= len(splits[s]) <= 5 + LARGEST for s in ("dev", "test"))
    assert {pair for pair in splits["train"] if pair[1] == "Lauf!"} == {pair for pair in pairs if pair[1] == "Lauf!"}
    # The split does not depend on the order of the pairs in the file. Each split keeps this order.
    backwards = split_pairs(pairs[::-1], held_out=5)
    assert {s: set(p) for s, p in backwards.items()} == {s: set(p) for s, p in splits.items()}
    index = {pair: i for i, pair in enumerate(dict.fromkeys((" ".join(e.split()), g) for e, g in pairs))}
    for split in splits.values():
        assert [index[pair] for pair in split] == sorted(index[pair] for pair in split)
