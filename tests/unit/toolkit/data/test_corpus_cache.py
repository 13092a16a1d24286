"""Parallel text is read unchanged, encoded once, and cached; damaged or outdated entries are not used."""

from __future__ import annotations

import gzip
import json
import lzma
import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("sentencepiece")

from tsallis.errors import InputError
from tsallis.toolkit.data import BatchPlan, corpus_cache
from tsallis.toolkit.data.corpus import Corpus, Counts, SampledCorpus
from tsallis.toolkit.data.corpus_cache import cached_corpus, cached_subwords, encode_pairs, open_corpus, read_parallel
from tsallis.toolkit.data.io import stream_lines
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.data.subwords import Subwords

GERMAN = ["der Hund läuft", "die Katze schläft", "das Haus ist groß", "ein Vogel singt laut", "wir gehen nach Hause"]
ENGLISH = ["the dog runs", "the cat sleeps", "the house is big", "a bird sings loudly", "we are going home"]
SRC = Subwords.train(GERMAN * 3, 60)
TGT = Subwords.train(ENGLISH * 3, 31, "unigram")
PACKED: dict[str, Callable[[bytes], bytes]] = {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}


def written(folder: Path, src: list[str] = GERMAN, tgt: list[str] = ENGLISH, ending: str = "") -> tuple[Path, Path]:
    paths = folder / f"a.de{ending}", folder / f"a.en{ending}"
    for path, lines in zip(paths, (src, tgt), strict=True):
        path.write_bytes(PACKED[ending]("".join(f"{line}\n" for line in lines).encode()))
    return paths


@pytest.mark.parametrize("ending", PACKED)
def test_read_parallel_strips_and_pairs_lines(tmp_path: Path, ending: str) -> None:
    src = ["eins", "", "  zwei\t", "drei\x85vier\u2028fünf\x0b sechs\r", " "]
    paths = written(tmp_path, src, ["one", "zero", "two", "three four five six", "x"], ending)
    result = list(read_parallel(*map(str, paths)))
    assert [s for s, _ in result] == ["eins", "", "zwei", "drei\x85vier\u2028fünf\x0b sechs", ""]
    assert [t for _, t in result] == ["one", "zero", "two", "three four five six", "x"]


@pytest.mark.parametrize(
    ("src", "tgt", "message"),
    [
        (3, 5, r"^{0}:4: expected the same number of lines in both files, found 3 in {0} and 5 in {1}$"),
        (5, 3, r"^{1}:4: expected the same number of lines in both files, found 5 in {0} and 3 in {1}$"),
    ],
)
def test_unequal_numbers_of_lines_raise(tmp_path: Path, src: int, tgt: int, message: str) -> None:
    paths = written(tmp_path, ["x"] * src, ["y"] * tgt)
    with pytest.raises(InputError, match=message.format(*paths)):
        list(read_parallel(*paths))


@pytest.mark.parametrize("ending", PACKED)
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{0}: the file is empty, expected lines of text"),
        (b"\xef\xbb\xbf", "{0}: the file is empty, expected lines of text"),
        (b"one\ntwo\nth\xfcree\n", "{0}:3: expected UTF-8 text, found byte 0xfc at byte 2 of the line"),
        (b"\n" * 9 + b"\xe3\x81", "{0}:10: expected UTF-8 text, found byte 0xe3 at byte 0 of the line"),
    ],
)
def test_empty_or_invalid_text_raises(tmp_path: Path, ending: str, content: bytes, message: str) -> None:
    path = tmp_path / f"a{ending}"
    path.write_bytes(PACKED[ending](content))
    with pytest.raises(InputError) as error:
        list(stream_lines(path))
    assert str(error.value) == message.format(path)


@pytest.mark.parametrize("ending", [".gz", ".xz"])
def test_damaged_or_missing_archives_raise(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"a{ending}"
    whole = PACKED[ending](os.urandom(5000).hex().encode())
    middle = len(whole) // 2
    for blob in (whole[:-1], whole[:middle], b"text\n", whole[:middle] + b"xxxxxxxxx" + whole[middle + 9 :], b""):
        path.write_bytes(blob)
        with pytest.raises(InputError, match=rf"a\{ending}: (can't be unpacked as \{ending}|the file is empty)"):
            list(stream_lines(path))
    path.unlink()
    with pytest.raises(InputError, match=rf"a\{ending}: can't be read: No such file"):
        list(stream_lines(path))
    with pytest.raises(InputError, match="can't be read: Is a directory"):
        list(stream_lines(tmp_path))


@pytest.mark.parametrize("chunk", [1, 3, 8192])
def test_encode_pairs_skips_empty_and_long_pairs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(corpus_cache, "CHUNK", chunk)
    pairs = [*zip(GERMAN, ENGLISH, strict=True), ("", "empty"), ("leer", ""), ("\u200b", "x"), (GERMAN[0] * 9, "long")]
    limit = max(len(m.encode(t)) for m, texts in ((SRC, GERMAN), (TGT, ENGLISH)) for t in texts)
    corpus = encode_pairs(iter(pairs), tmp_path / "c", SRC, TGT, limit, keep_text=True)
    assert corpus.src == SRC.encode_many(GERMAN) and corpus.tgt == TGT.encode_many(ENGLISH)
    assert corpus.counts == Counts(read=9, rows=5, empty=3, long=1)
    assert corpus.digest() == Corpus(SRC.encode_many(GERMAN), TGT.encode_many(ENGLISH)).digest()
    assert [bytes(r).decode() for r in RaggedRows.open(tmp_path / "c" / "src.text")] == GERMAN
    assert [bytes(r).decode() for r in RaggedRows.open(tmp_path / "c" / "tgt.text")] == ENGLISH
    again = open_corpus(tmp_path / "c")
    assert again == corpus and again.counts == corpus.counts
    # The limit equals the longest length. With a limit of one subword less, the longest pairs are left out.
    shorter = encode_pairs(iter(pairs), tmp_path / "d", SRC, TGT, limit - 1)
    assert shorter.counts is not None and shorter.counts.long > 1
    assert int(shorter.lengths().max()) <= limit - 1 < int(corpus.lengths().max()) == limit


def test_corpora_without_remaining_pairs_raise(tmp_path: Path) -> None:
    reason = r"none of the 2 pairs .*: 1 have an empty .*, 1 have a text of more than 1 subwords \(max_length\)$"
    with pytest.raises(InputError, match=f"^the text: {reason}"):
        encode_pairs([("", "x"), ("der Hund", "the dog")], tmp_path / "c", SRC, TGT, 1)
    files = written(tmp_path, ["", "der Hund"], ["x", "the dog"])
    with pytest.raises(InputError, match=f"^{files[0]} and {files[1]}: {reason}"):
        cached_corpus(tmp_path / "cache", *files, SRC, TGT, 1)
    files = written(tmp_path, [""], ["x"])
    with pytest.raises(InputError, match=r"none of the 1 pairs .*: 1 have an empty source or target$"):
        cached_corpus(tmp_path / "cache", *files, SRC, TGT, 1)


@pytest.mark.parametrize(("size", "words"), [(5000, "5000 subwords are too many"), (9, "9 subwords are too few")])
def test_invalid_subword_sizes_raise_and_name_the_files(tmp_path: Path, size: int, words: str) -> None:
    files = written(tmp_path)
    with pytest.raises(InputError, match=f"^{files[0]} and {files[1]}: {words} for .*this text"):
        cached_subwords(tmp_path / "cache", files, size)


@pytest.mark.parametrize("content", [b"", b"hello"])
def test_damaged_cached_subwords_are_learned_again(tmp_path: Path, content: bytes) -> None:
    files, cache = written(tmp_path), tmp_path / "cache"
    subwords = cached_subwords(cache, files, 32)
    (path,) = cache.glob("*.model")
    path.write_bytes(content)
    assert cached_subwords(cache, files, 32) == subwords == Subwords.load(path)


def test_interrupted_encodings_cannot_be_opened(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[str, str]]:
        yield from zip(GERMAN, ENGLISH, strict=True)
        raise InputError("a.de:6: expected UTF-8 text")

    with pytest.raises(InputError, match=r"a\.de:6"):
        encode_pairs(broken(), tmp_path / "c", SRC, TGT)
    with pytest.raises(InputError, match=r"corpus\.json: can't be read"):
        open_corpus(tmp_path / "c")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "not a description of a corpus"),
        ({"counts": {"read": 5}}, "not a description of a corpus"),
        ({"counts": {"read": 5, "rows": 4, "empty": 1, "long": 0}}, "expected 4 pairs, found 5 sources"),
    ],
)
def test_changed_corpus_descriptions_raise(tmp_path: Path, content: dict[str, object], message: str) -> None:
    encode_pairs(zip(GERMAN, ENGLISH, strict=True), tmp_path / "c", SRC, TGT)
    (tmp_path / "c" / "corpus.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=message):
        open_corpus(tmp_path / "c")


@pytest.fixture
def encodings(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    folders: list[Path] = []
    whole = corpus_cache.encode_pairs

    def counted(pairs: object, folder: Path, *arguments: object) -> Corpus:
        folders.append(folder)
        return whole(pairs, folder, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus_cache, "encode_pairs", counted)
    return folders


def entries(cache: Path) -> list[Path]:
    return [p for p in cache.iterdir() if p.is_dir()]


def test_encoded_corpora_are_reused_from_the_cache(tmp_path: Path, encodings: list[Path]) -> None:
    paths = written(tmp_path)
    first = cached_corpus(tmp_path / "new" / "cache", *paths, SRC, TGT, 50)
    second = cached_corpus(str(tmp_path / "new" / "cache"), *map(str, paths), SRC, TGT, 50)
    assert len(encodings) == 1
    assert first == second == Corpus(SRC.encode_many(GERMAN), TGT.encode_many(ENGLISH))
    assert first.digest() == second.digest() and second.counts == Counts(5, 5, 0, 0)
    # Files with the same content and other names use the same entry.
    (tmp_path / "other").mkdir()
    assert cached_corpus(tmp_path / "new" / "cache", *written(tmp_path / "other"), SRC, TGT, 50) == first
    assert len(encodings) == 1 and len(entries(tmp_path / "new" / "cache")) == 1


def test_changed_inputs_are_encoded_again(tmp_path: Path, encodings: list[Path]) -> None:
    paths = written(tmp_path)
    cache = tmp_path / "cache"
    other = Subwords.train(GERMAN * 3, 59)
    corpora = [
        cached_corpus(cache, *paths, SRC, TGT, 50),
        cached_corpus(cache, *paths, SRC, TGT, 49),
        cached_corpus(cache, *paths, SRC, TGT),
        cached_corpus(cache, *paths, other, TGT, 50),
        cached_corpus(cache, *paths, SRC, other, 50),
        cached_corpus(cache, *reversed(paths), SRC, TGT, 50),
        cached_corpus(cache, *paths, SRC, TGT, 50, alpha=0.1),
    ]
    assert len(encodings) == len(corpora) == len(entries(cache))
    assert corpora[5].src == SRC.encode_many(ENGLISH)
    cached_corpus(cache, *paths, SRC, TGT, 50, alpha=0.5)
    assert len(encodings) == len(corpora)


def test_changed_text_is_encoded_again(tmp_path: Path, encodings: list[Path]) -> None:
    """A change is noticed even if size and modification time stay the same."""
    paths, cache = written(tmp_path), tmp_path / "cache"
    cached_corpus(cache, *paths, SRC, TGT)
    times = paths[0].stat()
    paths[0].write_text(paths[0].read_text().replace("Hund", "Mund"))
    os.utime(paths[0], ns=(times.st_atime_ns, times.st_mtime_ns))
    corpus = cached_corpus(cache, *paths, SRC, TGT)
    assert (len(encodings) == 2 and SRC.decode(corpus.src[0]) == "der Mund läuft") or 3 in corpus.src[0]


@pytest.mark.parametrize("name", ["corpus.json", "src/tokens.bin", "tgt/offsets.bin", "src.text/tokens.bin"])
def test_damaged_cache_entries_are_rebuilt(tmp_path: Path, encodings: list[Path], name: str) -> None:
    paths, cache = written(tmp_path), tmp_path / "cache"
    whole = cached_corpus(cache, *paths, SRC, TGT, alpha=0.1)
    digest = whole.digest()
    (entry,) = entries(cache)
    for damage in (lambda p: p.write_bytes(p.read_bytes()[:-1]), lambda p: p.unlink()):
        before = len(encodings)
        damage(entry / name)
        assert cached_corpus(cache, *paths, SRC, TGT, alpha=0.1).digest() == digest
        assert len(encodings) == before + 1 and entries(cache) == [entry]


def test_leftovers_of_kills_are_removed(tmp_path: Path, encodings: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    paths, cache = written(tmp_path), tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr(corpus_cache, "write_atomic", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as after a kill
        with pytest.raises(KeyboardInterrupt):
            cached_corpus(cache, *paths, SRC, TGT)
    (left,) = entries(cache)
    assert left.name.endswith(".tmp")
    assert len(cached_corpus(cache, *paths, SRC, TGT)) == 5
    (entry,) = entries(cache)
    assert not entry.name.endswith(".tmp") and len(encodings) == 2


def test_failed_encodings_leave_no_cache_entry(tmp_path: Path) -> None:
    paths, cache = written(tmp_path, tgt=ENGLISH[:3]), tmp_path / "cache"
    with pytest.raises(InputError, match=r"a\.en:4: expected the same number of lines"):
        cached_corpus(cache, *paths, SRC, TGT)
    assert entries(cache) == []
    with pytest.raises(InputError, match=r"gone: can't be read: No such file"):
        cached_corpus(cache, tmp_path / "gone", paths[1], SRC, TGT)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match=r"file: can't be used as a cache: File exists"):
        cached_corpus(tmp_path / "file", *paths, SRC, TGT)


def ask(barrier: object, results: object, cache: Path, paths: tuple[Path, Path], lines: int) -> None:
    torch.set_num_threads(1)
    barrier.wait()  # type: ignore[attr-defined]
    corpus = cached_corpus(cache, *paths, SRC, TGT)
    results.put((corpus.digest(), digest_of_lists(corpus), len(corpus) == lines))  # type: ignore[attr-defined]


def digest_of_lists(corpus: Corpus) -> str:
    return Corpus([r.tolist() for r in corpus.src], [r.tolist() for r in corpus.tgt]).digest()


@pytest.mark.parametrize("locks", [True, False])
def test_concurrent_processes_share_a_cache_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: bool) -> None:
    if not locks:
        import errno
        import fcntl

        monkeypatch.setattr(fcntl, "flock", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOLCK, "no locks")))
    paths, cache = written(tmp_path, GERMAN * 500, ENGLISH * 500), tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.Queue()
    processes = [context.Process(target=ask, args=(barrier, results, cache, paths, 2500)) for _ in range(4)]
    for process in processes:
        process.start()
    result = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    expected = Corpus(SRC.encode_many(GERMAN * 500), TGT.encode_many(ENGLISH * 500)).digest()
    assert result == [(expected, expected, True)] * 4
    assert len(entries(cache)) == 1


def sampled(folder: Path, **changes: object) -> SampledCorpus:
    folder.mkdir(exist_ok=True)
    paths = written(folder, GERMAN * 20, ENGLISH * 20)
    corpus = cached_corpus(folder / "cache", *paths, SRC, TGT, 50, alpha=0.3)
    assert isinstance(corpus, SampledCorpus)
    return replace(corpus, **{"seed": 4, **changes})  # type: ignore[arg-type]


def test_sampled_segmentations_depend_on_epoch_seed_and_row(tmp_path: Path) -> None:
    corpus = sampled(tmp_path / "a")
    rows = [7, 3, 88, 12, 0, 5]
    first = corpus.batch(rows, 1)
    assert first.index == tuple(rows)
    for model, tokens, lengths, texts in (
        (SRC, first.src, first.src_lengths, GERMAN),
        (TGT, first.tgt_in[:, 1:], (first.tgt_in[:, 1:] != 0).sum(1), ENGLISH),
    ):
        decoded = [model.decode(t[:n].tolist()) for t, n in zip(tokens, lengths, strict=True)]
        assert decoded == [texts[i % 5] for i in rows]
    # Segmentations do not depend on other rows of the batch, on earlier draws or on the process.
    corpus.batch(range(50), 0)
    for number, row in enumerate(rows):
        alone = pickle.loads(pickle.dumps(corpus)).batch([row], 1)
        n = int(first.src_lengths[number])
        assert alone.src[0].tolist() == first.src[number, :n].tolist()
        assert alone.tgt_out[0].tolist() == first.tgt_out[number, : alone.tgt_out.size(1)].tolist()
    everything = [corpus.batch(range(100), epoch).src for epoch in (0, 1, 2)]
    assert not torch.equal(everything[0], everything[1]) and not torch.equal(everything[1], everything[2])
    assert torch.equal(corpus.batch(range(100), 2).src, everything[2])
    assert not torch.equal(sampled(tmp_path / "a", seed=5).batch(range(100), 2).src, everything[2])
    # Rows with the same text have different segmentations.
    lengths = corpus.batch(range(0, 100, 5)).src_lengths
    assert len({tuple(t[:n].tolist()) for t, n in zip(everything[0][::5], lengths, strict=True)}) > 1


def test_sampled_segmentations_stay_within_their_lengths(tmp_path: Path) -> None:
    corpus = sampled(tmp_path / "a", alpha=0.6)
    limits = corpus.lengths()
    assert limits.shape == (100, 2) and limits.dtype == torch.int32
    assert (limits >= corpus.best.lengths()).all() and (limits.sum(0) > corpus.best.lengths().sum(0)).all()
    assert torch.equal(sampled(tmp_path / "a", alpha=0.6).lengths(), limits)
    plan = BatchPlan(limits, max_tokens=100)
    longer = 0
    for epoch in range(3):
        for rows in plan.epoch(epoch):
            batch = corpus.batch(rows, epoch)
            assert (batch.src_lengths <= limits[rows, 0]).all()
            assert ((batch.tgt_out != -100).sum(1) <= limits[rows, 1] + 1).all()
            assert batch.src.numel() <= 100 and batch.tgt_in.numel() <= 100
            longer += int((batch.src_lengths > corpus.best.lengths()[rows, 0]).sum())
    assert longer > 100
    tight = sampled(tmp_path / "a", alpha=1.0, max_length=int(corpus.best.lengths().max()))
    assert int(tight.lengths().max()) == tight.max_length
    assert (tight.batch(range(100)).src_lengths <= tight.max_length).all()


def test_sampled_corpora_behave_like_plain_corpora(tmp_path: Path) -> None:
    corpus = sampled(tmp_path / "a")
    assert len(corpus) == 100 and corpus.counts == Counts(100, 100, 0, 0)
    assert corpus.src == SRC.encode_many(GERMAN * 20) and corpus.tgt == TGT.encode_many(ENGLISH * 20)
    best = corpus.best.batches(7)
    assert all(torch.equal(a.src, b.src) for a, b in zip(corpus.batches(7), best, strict=True))
    certain = replace(corpus, alpha=0.0).batch(range(9), 3)
    assert torch.equal(certain.src, corpus.best.batch(range(9)).src)
    assert len({corpus.digest(), corpus.best.digest(), *(replace(corpus, **c).digest() for c in CHANGES)}) == 5


CHANGES: list[dict[str, object]] = [{"alpha": 0.2}, {"seed": 5}, {"max_length": 49}]
