"""Functions that read one file, each with a valid file as a sample."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple


class Reader(NamedTuple):
    """A function that reads a file, and the path of a valid file in the samples' folder."""

    sample: str
    read: Callable[[Path], object]


def reader(module: str, name: str, *arguments: Any) -> Callable[[Path], None]:
    """Return a reader that imports its function when called, so atheris sees its lines; iterators are exhausted."""

    def read(path: Path) -> None:
        result = attrgetter(name)(import_module(f"tsallis.toolkit.{module}"))(path, *arguments)
        if isinstance(result, Iterator):
            for _ in result:
                pass

    return read


def read_parallel(path: Path) -> None:
    reader("data.corpus_cache", "read_parallel", path)(path)


read_text = reader("data.io", "stream_lines")
read_strings = reader("tasks.strings", "read_strings")
read_labelled = reader("tasks.classification", "read_labelled")
read_vocabulary = reader("data.vocabulary", "Vocabulary.load")


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


def read_config(path: Path, *overrides: str) -> None:
    from tsallis.toolkit.tasks.registry import load_config

    load_config(path, overrides).text()


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


WORDS = {"walk": 4, "walked": 5, "the": 6}
READERS: dict[str, Reader] = {
    "strings-file": Reader("data/strings/train", read_strings),
    "parallel-file": Reader("data/translation/train.de", read_parallel),
    "labelled-file": Reader("data/classification/train", read_labelled),
    "questions-file": Reader("data/visual/train", reader("tasks.vqa", "read_questions")),
    "paragraphs-file": Reader("data/language/train", reader("tasks.language", "read_texts", "paragraphs")),
    "gz-file": Reader("data/text.gz", read_text),
    "xz-file": Reader("data/text.xz", read_text),
    "npy-file": Reader("data/images.npy", read_images),
    "npy-xz-file": Reader("data/images.npy.xz", read_images),
    "npz-file": Reader("data/images.npz", read_images),
    "tar-file": Reader("data/images.tar", read_images),
    "vectors-file": Reader("data/vectors.txt", reader("data.word_vectors", "read_word_vectors", WORDS)),
    "vocabulary-file": Reader("data/vocabulary.json", read_vocabulary),
    "request-body": Reader("data/request.json", parse_request),
    "config-file": Reader("config/strings.yaml", read_config),
    **{f"unpack-{p}": Reader(f"data/text.{p}", partial(unpack, p)) for p in ("gz", "xz", "zip", "tar")},
    "unpack-questions": Reader("data/questions.json", partial(unpack, "plain")),
}
