"""Cache of learned subwords and encoded text. One process writes an entry, and all processes read it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from tsallis.errors import InputError
from tsallis.toolkit.data.corpus import Corpus, Counts, SampledCorpus
from tsallis.toolkit.data.io import digest_file, locked, read_json, stream_lines, write_atomic
from tsallis.toolkit.data.ragged import RaggedRows, RaggedWriter, type_for
from tsallis.toolkit.data.subwords import Subwords

CORPUS = "corpus.json"  # written last: it marks the folder as a complete corpus
SIDES = ("src", "tgt")
FORMAT = 2
CHUNK = 8192  # number of pairs encoded at once


def cache_folder(folder: str | None) -> Path:
    """Return `folder`. If it is None, return the default: `tsallis` in `XDG_CACHE_HOME` or in `~/.cache`.

    Raises:
        RuntimeError: If the user's home folder is unknown.
    """
    if folder is not None:
        return Path(folder)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsallis"


def key_of(content: dict[str, Any]) -> str:
    """Return the cache key of files and their processing options."""
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def read_parallel(src_path: Path | str, tgt_path: Path | str) -> Iterator[tuple[str, str]]:
    """Yield pairs of lines from two files; either line may be empty.

    Raises:
        InputError: If a file can't be read, see :func:`stream_lines`, or the files have different numbers of lines.
    """
    sides = stream_lines(src_path), stream_lines(tgt_path)
    for number, (source, target) in enumerate(zip_longest(*sides)):
        if source is None or target is None:
            pair = zip((source, target), sides, strict=True)
            counts = [number + (line is not None) + sum(1 for _ in side) for line, side in pair]
            raise InputError(
                f"{src_path if source is None else tgt_path}:{number + 1}: expected the same number of "
                "lines in both files, "
                f"found {counts[0]} in {src_path} and {counts[1]} in {tgt_path}"
            )
        yield source, target


def encode_pairs(
    pairs: Iterable[tuple[str, str]],
    folder: Path | str,
    src: Subwords,
    tgt: Subwords,
    max_length: int | None = None,
    keep_text: bool = False,
    name: str = "the text",
) -> Corpus:
    """Encode pairs of texts and write them to a new folder, with constant memory.

    Args:
        pairs: Pairs of source and target, see :func:`read_parallel`. Pairs with an empty side are skipped.
        folder: New folder. :func:`open_corpus` accepts it only after all pairs are written.
        src, tgt: Subwords of the sources and of the targets.
        max_length: Maximum number of subwords per side; longer pairs are skipped.
        keep_text: Whether to store the text as well, for :class:`~tsallis.toolkit.data.corpus.SampledCorpus`.
        name: Name of the files, for errors.

    Returns:
        The memory-mapped corpus; its `counts` contain the numbers of skipped pairs.

    Raises:
        InputError: If pairs can't be read, or all pairs are skipped.
        OSError: If the folder can't be written or exists.
    """
    folder, pairs_read, rows_count, empty = Path(folder), 0, 0, 0
    with contextlib.ExitStack() as stack:

        def create(name: str, dtype: str) -> RaggedWriter:
            return stack.enter_context(contextlib.closing(RaggedWriter(folder / name, dtype)))

        models, stream = (src, tgt), iter(pairs)
        writers = [create(name, type_for(len(model))) for name, model in zip(SIDES, models, strict=True)]
        text_writers = [create(f"{name}.text", "<u1") for name in SIDES if keep_text]
        while chunk := list(islice(stream, CHUNK)):
            texts = list(zip(*chunk, strict=True))
            rows = [model.encode_arrays(lines) for model, lines in zip(models, texts, strict=True)]
            lengths = np.array([[len(row) for row in part] for part in rows])  # shape [side, pair]
            filled = (lengths > 0).all(0)
            fits = filled if max_length is None else filled & (lengths <= max_length).all(0)
            selection = np.flatnonzero(fits).tolist()
            for writer, part in zip(writers, rows, strict=True):
                writer.extend([part[i] for i in selection])
            for writer, lines in zip(text_writers, texts, strict=False):
                writer.extend([np.frombuffer(lines[i].encode(), np.uint8) for i in selection])
            pairs_read += len(chunk)
            rows_count += len(selection)
            empty += int((~filled).sum())
        if not rows_count:
            long = f", {pairs_read - empty} have a text of more than {max_length} subwords (max_length)"
            reason = f"{empty} have an empty source or target{long if empty < pairs_read else ''}"
            raise InputError(f"{name}: none of the {pairs_read} pairs can be used: {reason}")
        for writer in (*writers, *text_writers):
            writer.finish()
    counts = Counts(pairs_read, rows_count, empty, pairs_read - rows_count - empty)
    write_atomic(folder / CORPUS, json.dumps({"counts": asdict(counts)}, indent=1))
    return open_corpus(folder)


def open_corpus(folder: Path | str) -> Corpus:
    """Open a corpus that :func:`encode_pairs` wrote; its files are mapped into memory.

    Raises:
        InputError: If the folder is not a complete corpus, or file sizes have changed.
    """
    folder = Path(folder)
    content = read_json(folder / CORPUS)
    try:
        counts = Counts(**content["counts"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{folder / CORPUS}: not a description of a corpus") from error
    src, tgt = RaggedRows.open(folder / "src"), RaggedRows.open(folder / "tgt")
    if not len(src) == len(tgt) == counts.rows:
        raise InputError(f"{folder}: expected {counts.rows} pairs, found {len(src)} sources and {len(tgt)} targets")
    return Corpus(src, tgt, counts)


def cached_subwords(cache_folder: Path | str, paths: Sequence[Path | str], size: int, **options: Any) -> Subwords:
    """Learn subwords from the texts of all files, or load them from the cache.

    A damaged model is learned again. If several processes call this function at the same time, one learns the subwords
    and the others wait.

    Args:
        cache_folder: Folder of the cache.
        paths: Text files.
        size: Number of subwords.
        options: Other options of :meth:`Subwords.train`.

    Raises:
        InputError: If a file can't be read, the subwords can't be learned, or the cache can't be written.
    """
    cache = Path(cache_folder)
    with _writable(cache):
        key = key_of({"files": [digest_file(path) for path in paths], "size": size, **options})
        path = cache / f"{key}.model"
        with locked(cache / f"{key}.lock"):
            with contextlib.suppress(InputError):  # the model is missing or damaged
                return Subwords.load(path)
            text, name = chain(*map(stream_lines, paths)), " and ".join(map(str, paths))
            subwords = Subwords.train(text, size, name=name, **options)
            subwords.save(path)
            return subwords


def cached_corpus(
    cache_folder: Path | str,
    src_path: Path | str,
    tgt_path: Path | str,
    src: Subwords,
    tgt: Subwords,
    max_length: int | None = None,
    alpha: float | None = None,
) -> Corpus:
    """Encode a parallel text, or load it from the cache.

    The key of an entry consists of the files' content, the subwords, `max_length` and whether `alpha` is set. A damaged
    entry is written again. If several processes call this function at the same time, one encodes and the others wait.

    Args:
        cache_folder: Folder of the cache.
        src_path, tgt_path: Files of the sources and of the targets.
        src, tgt: Subwords of the sources and of the targets.
        max_length: Maximum number of subwords per side; longer pairs are skipped.
        alpha: Parameter of random segmentations. If given, the text is stored and segmented anew in every epoch, see
            :class:`~tsallis.toolkit.data.corpus.SampledCorpus`.

    Raises:
        InputError: See :func:`read_parallel`, or if the cache can't be written.
    """
    cache, keep_text = Path(cache_folder), alpha is not None
    with _writable(cache):
        key_content = {
            "format": FORMAT,
            "files": [digest_file(path) for path in (src_path, tgt_path)],
            "subwords": [src.fingerprint(), tgt.fingerprint()],
            "max_length": max_length,
            "text": keep_text,
        }
        key = key_of(key_content)
        entry = cache / key
        with locked(cache / f"{key}.lock") as has_lock:
            if has_lock:  # no other process is writing this entry, so these folders were left by killed processes
                for leftover in cache.glob(f".{key}.*.tmp"):
                    shutil.rmtree(leftover, ignore_errors=True)
            if not _is_complete(entry, keep_text):
                # Write to a temporary folder beside the entry, and rename it when it is complete.
                with tempfile.TemporaryDirectory(".tmp", f".{key}.", cache, ignore_cleanup_errors=True) as folder:
                    new = Path(folder) / "new"
                    pairs, name = read_parallel(src_path, tgt_path), f"{src_path} and {tgt_path}"
                    encode_pairs(pairs, new, src, tgt, max_length, keep_text, name)
                    try:
                        new.rename(entry)
                    except OSError:  # the entry is damaged, or another process without a lock has just written it
                        if not _is_complete(entry, keep_text):
                            shutil.rmtree(entry)  # processes that mapped the old files can still read them
                            new.rename(entry)
    corpus = open_corpus(entry)
    if alpha is None:
        return corpus
    texts = [RaggedRows.open(entry / f"{side}.text") for side in SIDES]
    parts: dict[str, Any] = {"src_text": texts[0], "tgt_text": texts[1], "src_subwords": src, "tgt_subwords": tgt}
    return SampledCorpus(**vars(corpus), **parts, alpha=alpha, max_length=max_length)


@contextlib.contextmanager
def _writable(cache: Path) -> Iterator[None]:
    """Create the cache folder, and convert write errors to :class:`~tsallis.errors.InputError`."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise InputError(f"{cache}: can't be used as a cache: {error.strerror or error}") from error


def _is_complete(entry: Path, keep_text: bool) -> bool:
    """Return whether an entry is complete."""
    try:
        corpus = open_corpus(entry)
        return all(len(RaggedRows.open(entry / f"{n}.text")) == len(corpus) for n in SIDES if keep_text)
    except InputError:
        return False
