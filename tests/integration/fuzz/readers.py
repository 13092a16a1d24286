"""Functions that read one file, each with a good file as a sample."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple


class Reader(NamedTuple):
    """A function of a file, and a good file in the samples' folder."""

    sample: str
    read: Callable[[Path], object]


def read_parallel(path: Path) -> None:
    from tsallis.toolkit.data.corpus_cache import read_parallel

    list(read_parallel(path, path))


def read_text(path: Path) -> None:
    from tsallis.toolkit.data.io import stream_lines

    for _ in stream_lines(path):
        pass


def read_strings(path: Path) -> None:
    from tsallis.toolkit.tasks.strings import read_strings

    read_strings(path)


def read_labelled(path: Path) -> None:
    from tsallis.toolkit.tasks.classification import read_labelled

    read_labelled(path)


def read_questions(path: Path) -> None:
    from tsallis.toolkit.tasks.vqa import read_questions

    read_questions(path)


def read_images(path: Path) -> None:
    from tsallis.toolkit.data.images import open_pictures

    pictures = open_pictures(path)
    names = [name for name in ("0", "1", "photos/0", "photos/1") if name in pictures]
    if names:
        pictures.batch(names)


def unpack(packing: Any, path: Path) -> None:
    from tsallis.toolkit.datasets.archive import fetch_text
    from tsallis.toolkit.datasets.download import Part, SourceFile

    member = "text" if packing in ("zip", "tar") else None
    form: Any = "questions" if path.suffix == ".json" else "lines"
    file = SourceFile("out", parts=(Part(SourceFile(path.name), packing, member, form),))
    packed = path.parent / "packed"
    packed.mkdir()
    shutil.copy(path, packed)
    fetch_text(file, path.parent / "out", packed)


def read_config(path: Path) -> None:
    from tsallis.toolkit.tasks.registry import load_config

    load_config(path).text()


def read_vocabulary(path: Path) -> None:
    from tsallis.toolkit.data import Vocabulary

    Vocabulary.load(path)


def read_vectors(path: Path) -> None:
    from tsallis.toolkit.data.word_vectors import read_word_vectors

    read_word_vectors(path, {"walk": 4, "walked": 5, "the": 6})


def read_paragraphs(path: Path) -> None:
    from tsallis.toolkit.tasks.language import read_texts

    for _ in read_texts(path, "paragraphs"):
        pass


def parse_request(path: Path) -> None:
    from tsallis.errors import InputError
    from tsallis.toolkit.serve.limits import Limits, Refusal
    from tsallis.toolkit.serve.requests import QUESTIONS, parse_request

    refusals = []
    for question in QUESTIONS.values():
        try:
            parse_request(path.read_bytes(), question, Limits())
        except Refusal as refusal:
            assert 400 <= refusal.status < 500
            refusals.append(refusal.message)
    if refusals:
        raise InputError(refusals[0])


READERS: dict[str, Reader] = {
    "strings-file": Reader("data/strings/train", read_strings),
    "parallel-file": Reader("data/translation/train.de", read_parallel),
    "labelled-file": Reader("data/classification/train", read_labelled),
    "questions-file": Reader("data/visual/train", read_questions),
    "paragraphs-file": Reader("data/language/train", read_paragraphs),
    "gz-file": Reader("data/text.gz", read_text),
    "xz-file": Reader("data/text.xz", read_text),
    "npy-file": Reader("data/images.npy", read_images),
    "npy-xz-file": Reader("data/images.npy.xz", read_images),
    "npz-file": Reader("data/images.npz", read_images),
    "tar-file": Reader("data/images.tar", read_images),
    "vectors-file": Reader("data/vectors.txt", read_vectors),
    "vocabulary-file": Reader("data/vocabulary.json", read_vocabulary),
    "request-body": Reader("data/request.json", parse_request),
    "config-file": Reader("config/strings.yaml", read_config),
    **{f"unpack-{p}": Reader(f"data/text.{p}", partial(unpack, p)) for p in ("gz", "xz", "zip", "tar")},
    "unpack-questions": Reader("data/questions.json", partial(unpack, "plain")),
}
