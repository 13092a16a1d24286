"""Known data sets: where their files lie, and what they must be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tsallis.errors import InputError
from tsallis.toolkit.datasets.archive import Report, fetch_text
from tsallis.toolkit.datasets.download import Part, SourceFile, count_lines, fetch, record_of, verify
from tsallis.toolkit.datasets.labelled_sets import SETS
from tsallis.toolkit.datasets.source import Source, language_of, remote, table, unpack

__all__ = ["SOURCES", "Source", "check_sides", "get", "language_of"]
SETTINGS = ("high", "medium", "low")  # of the shared task of 2018: training files of three sizes
PACKED_FILE = ".packed"  # what texts are unpacked from, until they all are


def _sigmorphon2018() -> Source:
    commit = "490e2e0693241f708670d9d1c56803b754fab7cd"
    base = f"https://raw.githubusercontent.com/sigmorphon/conll2018/{commit}/task1"
    entries = []
    for name, size, sha256 in table("sigmorphon2018.tsv"):
        # The ten surprise languages of the task have a folder of their own.
        entries.append(SourceFile(name, (f"{base}/all/{name}", f"{base}/surprise/{name}"), int(size), sha256))
    settings = {setting: sum(entry.name.endswith(f"-train-{setting}") for entry in entries) for setting in SETTINGS}
    counts = ", ".join(f"{count} in {setting}" for setting, count in settings.items())
    most = max(settings.values())
    return Source(
        "sigmorphon2018",
        f"CoNLL-SIGMORPHON 2018, task 1: inflection in {most} of its 103 languages; by setting {counts}",
        "derived from UniMorph (CC BY-SA)",
        "Cotterell et al. 2018, The CoNLL-SIGMORPHON 2018 shared task: Universal morphological reinflection",
        tuple(entries),
    )


# Of the unpacked text: bytes, SHA-256.
MULTI30K = {
    "train.cs": (1755283, "2be68b38c8d586ff4f54eb13cc6e1baaaa053695b3f070d3038303a47f2268da"),
    "train.de": (2110398, "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72"),
    "train.en": (1801238, "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6"),
    "train.fr": (2111303, "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d"),
    "val.cs": (60213, "d53827e469b0a1ca8d57e9e26b2b64c4bc4b33f5479c7b03ae87ae5c882c3e33"),
    "val.de": (75981, "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660"),
    "val.en": (63297, "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227"),
    "val.fr": (73924, "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc"),
    "test_2016_flickr.cs": (62364, "45adb85f688de8407fddcbe1b36dca15d12aab868149b337e2576f2d6d2ff8d8"),
    "test_2016_flickr.de": (70649, "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16"),
    "test_2016_flickr.en": (62076, "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182"),
    "test_2016_flickr.fr": (72261, "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6"),
}
MULTI30K_LINES = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


def _multi30k() -> Source:
    base = "https://raw.githubusercontent.com/multi30k/dataset/a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
    entries = []
    for name, (size, sha256) in MULTI30K.items():
        part = Part(remote(f"{base}/{name}.gz"), "gz")
        lines = MULTI30K_LINES[name.partition(".")[0]]
        entries.append(SourceFile(name, size=size, sha256=sha256, lines=lines, parts=(part,)))
    return Source(
        "multi30k",
        "Multi30k, task 1: captions of photographs in English, German, French and Czech",
        "CC BY-NC-SA 4.0",
        "Elliott et al. 2016, Multi30K: Multilingual English-German image descriptions; Elliott et al. 2017; "
        "Barrault et al. 2018",
        tuple(entries),
        parallel=True,
    )


def _kftt() -> Source:
    archive = remote("https://www.phontron.com/kftt/download/kftt-data-1.0.tar.gz")
    lines = {"train": 440_288, "dev": 1_166, "tune": 1_235, "test": 1_160}
    names = [(f"kyoto-{split}.{side}", count) for split, count in lines.items() for side in ("ja", "en")]
    return Source(
        "kftt",
        "Kyoto Free Translation Task 1.0: Wikipedia's Kyoto articles in Japanese and English, not tokenised",
        "CC BY-SA 3.0",
        "Neubig 2011, The Kyoto Free Translation Task, http://www.phontron.com/kftt",
        tuple(unpack(n, k, [Part(archive, "tar", f"kftt-data-1.0/data/orig/{n}")]) for n, k in names),
        parallel=True,
    )


def _tatoeba() -> Source:
    commit = "de48b7027f7318d77010a6e08ed928c10748c23d"
    archive = remote(f"https://raw.githubusercontent.com/rioyshky/translation/{commit}/deu-eng.zip")
    entries = [
        unpack(f"{split}.{side}", None, [Part(archive, "zip", "deu.txt", "clusters", split=split, column=column)])
        for split in ("train", "dev", "test")
        for column, side in enumerate(("en", "de"))
    ]
    return Source(
        "tatoeba-de-en",
        "Tatoeba's German-English pairs of 2018-05-13 in the selection of ManyThings.org; splits of our own making, "
        "which share no sentence",
        "CC BY 2.0 FR",
        "Tatoeba, https://tatoeba.org; Tab-delimited bilingual sentence pairs, https://www.manythings.org/anki",
        tuple(entries),
        parallel=True,
    )


def _iwslt14() -> Source:
    archive = remote("https://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz")
    sets = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
    entries = []
    for side in ("de", "en"):
        talks = f"de-en/train.tags.de-en.{side}"
        tests = [Part(archive, "tar", f"de-en/IWSLT14.{s}.de-en.{side}.xml", "segments") for s in sets]
        entries += [
            # One line in 23 for development, and all five sets for the test, as is usual with this corpus.
            unpack(f"train.{side}", None, [Part(archive, "tar", talks, "talks", every=-23)]),
            unpack(f"dev.{side}", None, [Part(archive, "tar", talks, "talks", every=23)]),
            unpack(f"test.{side}", 6_750, tests),
        ]
    return Source(
        "iwslt14-de-en",
        "IWSLT 2014 German-English: TED talks, in their own case, not tokenised",
        "CC BY-NC-ND (TED talks, WIT3)",
        "Cettolo et al. 2014, Report on the 11th IWSLT evaluation campaign; Cettolo et al. 2012, WIT3",
        tuple(entries),
        parallel=True,
    )


def _iwslt17() -> Source:
    base = "https://huggingface.co/datasets/IWSLT/iwslt2017/resolve/main/data/2017-01-trnted/texts/de/en"
    archive = remote(f"{base}/de-en.zip")
    entries = []
    for side in ("de", "en"):
        sets = [f"de-en/IWSLT17.TED.{s}.de-en.{side}.xml" for s in ("dev2010", *(f"tst{y}" for y in range(2010, 2016)))]
        dev, *test = [Part(archive, "zip", member, "segments") for member in sets]
        entries += [
            unpack(f"train.{side}", 206_112, [Part(archive, "zip", f"de-en/train.tags.de-en.{side}", "talks")]),
            unpack(f"dev.{side}", 888, [dev]),
            unpack(f"test.{side}", 8_079, test),
        ]
    return Source(
        "iwslt17-de-en",
        "IWSLT 2017 German-English: TED talks; dev2010 for development, tst2010 to tst2015 for the test",
        "CC BY-NC-ND (TED talks, WIT3)",
        "Cettolo et al. 2017, Overview of the IWSLT 2017 evaluation campaign; Cettolo et al. 2012, WIT3",
        tuple(entries),
        parallel=True,
    )


STATMT = "https://www.statmt.org"


def _wmt16() -> Source:
    europarl = remote(
        "https://data.statmt.org/wmt16/translation-task/training-parallel-ep-v8.tgz",
        225018324,
        "8917bd3bef3bc894c8519ca1f8a4c7c330aad08a1263655a9d99ee13d532e3c7",
    )
    setimes = SourceFile("setimes-en-ro.txt.zip", ("https://object.pouta.csc.fi/OPUS-SETIMES/v2/moses/en-ro.txt.zip",))
    news = SourceFile(
        "wmt16-test.tgz",
        ("https://data.statmt.org/wmt16/translation-task/test.tgz",),
        md5="3d809cd0c2c86adb2c67034d15c4e446",
    )
    commit = "9695851c150fedbac3418915b251a75292d7d527"
    dev = f"https://raw.githubusercontent.com/rsennrich/wmt16-scripts/{commit}/sample/data/newsdev2016"
    digests = {
        "ro": (290402, "49b944fc73740ee12925d1c842b3d93eb27692eb91d055aca8cfc1f51d710b53"),
        "en": (259395, "c59454c1e6b500f4527b6c789caf3dd87bc6fd83efaddcd9b7e4e2b2cc86f3e0"),
    }
    entries = []
    for side, (size, sha256) in digests.items():
        train = [
            Part(europarl, "tar", f"training-parallel-ep-v8/europarl-v8.ro-en.{side}"),
            Part(setimes, "zip", f"SETIMES.en-ro.{side}"),
        ]
        test = f"test/newstest2016-roen-{'src' if side == 'ro' else 'ref'}.{side}.sgm"
        entries += [
            unpack(f"train.{side}", 612_422, train),
            SourceFile(f"newsdev2016.{side}", (f"{dev}.{side}",), size, sha256, lines=1_999),
            unpack(f"newstest2016.{side}", 1_999, [Part(news, "tar", test, "segments")]),
        ]
    return Source(
        "wmt16-ro-en",
        "WMT 2016 Romanian-English: Europarl v8 and SETIMES2; newsdev2016; newstest2016",
        "research use (news sets); Europarl: no known restrictions; SETIMES: CC BY-SA",
        "Bojar et al. 2016, Findings of the 2016 Conference on Machine Translation; Koehn 2005, Europarl; "
        "Tiedemann 2012, Parallel data, tools and interfaces in OPUS",
        tuple(entries),
        parallel=True,
    )


def _wmt14() -> Source:
    europarl = remote(
        f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz",
        657632379,
        "0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
    )
    crawl = remote(
        f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz",
        918311367,
        "c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
    )
    news = remote(
        f"{STATMT}/wmt14/training-parallel-nc-v9.tgz",
        80418416,
        "cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
    )
    dev = SourceFile("wmt13-test.tgz", (f"{STATMT}/wmt13/test.tgz",), md5="48eca5d02f637af44e85186847141f67")
    test = SourceFile("wmt14-test-full.tgz", (f"{STATMT}/wmt14/test-full.tgz",), md5="a8cd784e006feb32ac6f3d9ec7eb389a")
    entries = []
    for side, role in (("en", "src"), ("de", "ref")):
        train = [
            Part(europarl, "tar", f"training/europarl-v7.de-en.{side}"),
            Part(crawl, "tar", f"commoncrawl.de-en.{side}"),
            Part(news, "tar", f"training/news-commentary-v9.de-en.{side}"),
        ]
        entries += [
            unpack(f"train.{side}", 1_920_209 + 2_399_123 + 201_288, train),
            unpack(f"newstest2013.{side}", 3_000, [Part(dev, "tar", f"test/newstest2013-src.{side}.sgm", "segments")]),
            unpack(
                f"newstest2014.{side}",
                3_003,
                [Part(test, "tar", f"test-full/newstest2014-deen-{role}.{side}.sgm", "segments")],
            ),
        ]
    return Source(
        "wmt14-en-de",
        "WMT 2014 English-German: Europarl v7, Common Crawl and News Commentary v9; newstest2013; newstest2014",
        "research use (news sets, Common Crawl); Europarl: no known restrictions",
        "Bojar et al. 2014, Findings of the 2014 Workshop on Statistical Machine Translation; Koehn 2005, Europarl",
        tuple(entries),
        parallel=True,
    )


SOURCES = {
    source.name: source
    for source in (
        _sigmorphon2018(),
        _multi30k(),
        _kftt(),
        _tatoeba(),
        _iwslt14(),
        _iwslt17(),
        _wmt16(),
        _wmt14(),
        *SETS,
    )
}


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
