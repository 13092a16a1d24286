"""Data with questions about images: lines, words, answers, splits and encoded questions."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest
import torch

from tsallis.errors import InputError
from tsallis.symbols import FIRST, UNK
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.images import ArrayPictures, open_pictures
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.types import Vocabularies
from tsallis.toolkit.tasks.vqa import (
    ImageQuestion,
    Question,
    Visual,
    VisualData,
    answer_names,
    parse_question,
    question_words,
    read_questions,
)

LINES = "0\tWhat is it?\tbook, pen\nimg/2.jpg\tHow  many\u0085 pens\t11\n"
ASKED = [Question("0", "What is it?", "book, pen"), Question("img/2.jpg", "How  many\u0085 pens", "11")]
PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)


def write(path: Path, content: str) -> Path:
    path.write_text(content, encoding="utf-8", newline="\n")
    return path


def test_questions_are_read_with_or_without_header(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.tsv", LINES)
    with lzma.open(tmp_path / "train.tsv.xz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("image\tquestion\tanswer\n" + LINES)
    with gzip.open(tmp_path / "dev.tsv.gz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("Image\tQuestion\n0\twhat is it\n1\twhat is it\ta box\n")
    assert read_questions(plain) == read_questions(tmp_path / "train.tsv.xz") == ASKED
    result = read_questions(tmp_path / "dev.tsv.gz", gold=False)
    assert result == [Question("0", "what is it", ""), Question("1", "what is it", "")]
    below = write(tmp_path / "below.tsv", LINES + "image\tquestion\tanswer\n")
    assert read_questions(below)[2] == Question("image", "question", "answer")  # only the first line is a header


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("0\twhat\tbox\n1\twhat\n", r"f.tsv:2: expected image<TAB>question<TAB>answer, found 2 columns: '1\\twhat'"),
        ("image\tquestion\tanswer\n0\ta\tb\tc\n", r"f.tsv:2: expected .* found 4 columns"),
        ("0\twhat\tbox\n\n1\twhat\n", r"f.tsv:3: .* found 2 columns"),
        ("0\t \tbox\n", r"f.tsv:1: .* found an empty question"),
        ("0\twhat\t\n", r"f.tsv:1: .* found an empty answer"),
        ("x\twhat\tbox\n", r"f.tsv:1: image 'x' does not exist"),
        ("0\twhat\tbox\n3\twhat\tbox\n", r"f.tsv:2: image '3' does not exist"),
        ("image\tquestion\tanswer\n", "expected questions after the header"),
        ("", "the file is empty"),
    ],
)
def test_malformed_lines_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = write(tmp_path / "f.tsv", content)
    with pytest.raises(InputError, match=message):
        read_questions(path, ArrayPictures(PIXELS))


def test_questions_without_answers_are_parsed() -> None:
    with pytest.raises(InputError, match="q:3: expected image<TAB>question, found 1 column: 'what'"):
        parse_question("what", "q:3", gold=False)
    with pytest.raises(InputError, match="q:3: expected image<TAB>question, found an empty image"):
        parse_question("\twhat", "q:3", gold=False)
    assert parse_question("7\twhat\t", "q:3", gold=False) == Question("7", "what", "")


def test_question_words_are_lowercased_and_split() -> None:
    separated = "what’s in image 3 , at 10 . 5 m ?"
    assert question_words("What’s in Image3, at 10.5m?") == separated.split()
    assert question_words("Ünter tape_dispenser") == ["ünter", "tape_dispenser"] and question_words(" \t") == []


def test_answer_names_are_sorted_by_frequency() -> None:
    request = [Question("0", "?", a) for a in ("b", "a", "c", "c", "b, a")]
    assert answer_names(request) == ["c", "a", "b", "b, a"] and answer_names(request, 2) == ["c", "a"]


def test_questions_are_encoded_as_numbers() -> None:
    pictures = ArrayPictures(PIXELS)
    request = [Question(str(i % 3), "what " * (1 + i % 4), "abc"[i % 3]) for i in range(7)]
    vocabularies = Vocabularies(Vocabulary(["what"]), Vocabulary(["b", "a"]), ImageStore())
    lines = Visual(max_length=3).encode([ImageQuestion(q, pictures) for q in request], vocabularies)
    batch = lines.corpus.batch([4, 1, 2])
    assert batch.src.tolist() == [[1, 4, 0, 0], [1, 4, 4, 0], [2, 4, 4, 4]]  # the image's number, then the words
    assert batch.src_lengths.tolist() == [2, 3, 4] and batch.tgt_out[:, 0].tolist() == [FIRST, FIRST, UNK]
    assert vocabularies.images is not None and len(vocabularies.images) == 3
    images = vocabularies.images(batch.src[:, 0])
    assert images.dtype == torch.uint8 and (images.numpy() == PIXELS[[1, 1, 2]]).all()
    assert lines.references == [*"abcabca"] and lines.titles[1] == "1: what what "
    (row,) = Visual().encode([ImageQuestion(Question("0", "\u200b"), pictures)], vocabularies).corpus.src
    assert list(row) == [0, UNK]  # a question without words has one unknown word


def test_daquar_data_has_the_expected_counts(shared_data: Path) -> None:
    pytest.importorskip("PIL")
    folder = shared_data / "daquar"
    if not folder.is_dir():
        pytest.skip("needs data: DAQUAR")
    pictures = open_pictures(folder / "images_240x180_q85.tar")
    request = {name: read_questions(folder / f"{name}.tsv.xz", pictures) for name in ("train", "test")}
    assert [len(part) for part in request.values()] == [6795, 5673] and pictures.shape == (180, 240, 3)
    known = set(answer_names(request["train"]))
    assert round(100 * sum(q.answer not in known for q in request["test"]) / 5673, 1) == 9.7
    assert pictures.batch([request["test"][0].image]).shape == (1, 180, 240, 3)


def test_images_default_to_those_of_dev(tmp_path: Path) -> None:
    for split, pixels in (("train", PIXELS), ("dev", PIXELS[:2])):
        write(tmp_path / f"{split}.tsv", "0\twhat\tbox\n1\twhat\tpen\n")
        np.save(tmp_path / f"{split}.npy", pixels)
    config = {"folder": str(tmp_path), "train": "train.tsv", "dev": "dev.tsv"}
    images = {"train": "train.npy", "dev": "dev.npy"}
    task, _ = Visual.load(VisualData(task="visual", images=images, **config))
    assert isinstance(task, Visual) and task.images == str(tmp_path / "dev.npy")
