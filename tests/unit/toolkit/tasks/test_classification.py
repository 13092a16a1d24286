"""Classification data: files, words, labels and encoded documents."""

from __future__ import annotations

import gzip
import lzma
import warnings
from pathlib import Path

import numpy as np
import pytest

from task_runs import untrained_run
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.symbols import EOS, FIRST, UNK
from tsallis.toolkit.data.ragged import RaggedRows
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.classification import (
    Classification,
    ClassificationData,
    LabelledText,
    find_split,
    label_names,
    read_labelled,
    words,
)
from tsallis.toolkit.tasks.registry import task_of_run
from tsallis.toolkit.tasks.types import Vocabularies
from tsallis.toolkit.tasks.vqa import question_words

LINES = "1\t8\tpos/3_8\tA fine film .\n0\t2\tneg/4_2\tIt hurts\u0085 truly .\n"
EXAMPLES = [LabelledText("1", "A fine film ."), LabelledText("0", "It hurts\u0085 truly .")]


def test_labelled_lines_are_read_plain_or_compressed(tmp_path: Path) -> None:
    (tmp_path / "plain.tsv").write_text(LINES, encoding="utf-8", newline="\n")
    with lzma.open(tmp_path / "train.tsv.xz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write(LINES)
    with gzip.open(tmp_path / "dev.gz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("pos\tgood\n")
    assert read_labelled(tmp_path / "plain.tsv") == read_labelled(tmp_path / "train.tsv.xz") == EXAMPLES
    assert find_split(tmp_path, "train") == tmp_path / "train.tsv.xz"
    assert find_split(tmp_path, "plain.tsv") == tmp_path / "plain.tsv"
    result = find_split(tmp_path, "dev")
    assert result is not None and read_labelled(result) == [LabelledText("pos", "good")]
    assert find_split(tmp_path, "test") is None and find_split(tmp_path / "nowhere", "train") is None


def test_lines_with_more_columns_than_others_give_a_warning(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("pos\tgood\nneg\tbad\tand\tlong\n", encoding="utf-8")
    with pytest.warns(IgnoredInputWarning, match=r"train:2: found 4 columns, elsewhere 2; only the last .* \(1 line\)"):
        assert read_labelled(tmp_path / "train")[1] == LabelledText("neg", "long")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("pos\tgood\nonly text\n", r"f.tsv:2: expected label<TAB>text, found 1 column: 'only text'"),
        ("pos\tgood\npos\t \tx\nneg\t\n", r"f.tsv:3: expected label<TAB>text, found an empty text"),
        ("pos\tgood\n\tfoo\n", r"f.tsv:2: expected label<TAB>text, found an empty label"),
        ("\n \n", "f.tsv: expected lines of label<TAB>text, found only blank lines"),
        ("", "the file is empty"),
    ],
    ids=["one column", "no text", "no label", "blank lines", "empty file"],
)
def test_malformed_lines_are_rejected(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "f.tsv"
    path.write_text(content, encoding="utf-8", newline="\n")
    with pytest.raises(InputError, match=message):
        read_labelled(path)


def test_words_are_lowercased_and_split_from_punctuation() -> None:
    separated = "don't miss it ! ünly 10 / 10 . . ."
    assert words("Don't miss it!<br /><BR>Ünly 10/10 ...") == separated.split()
    assert words("the \u2018best\u2019 of o\u2019clock") == ["the", "‘", "best", "’", "of", "o’clock"]
    assert words(" \t ") == []


def test_words_keep_their_combining_marks() -> None:
    for text in ("नमस्ते दुनिया", "e\u0301te\u0301", "كِتَاب", "สวัสดี"):
        assert words(text) == question_words(text) == text.split()


def test_a_single_label_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("pos\tgood\npos\tfine\n")
    config = ClassificationData(task="classification", folder=str(tmp_path), train="train", dev="train")
    with pytest.raises(InputError, match="train: expected documents with at least two labels, found only 'pos'"):
        Classification.load(config)


def test_documents_are_encoded_as_numbers() -> None:
    examples = [LabelledText("pos", "good good film"), LabelledText("neg", "bad"), LabelledText("pos", "\u200b")]
    vocab = Vocabulary.build(words(e.text) for e in examples[:2])
    labels = label_names(examples)
    assert labels == ["neg", "pos"]
    vocabularies = Vocabularies(vocab, Vocabulary(labels))
    lines = Classification(max_length=2).encode(examples, vocabularies)
    good = vocab.encode(["good"])[0]
    assert isinstance(lines.corpus.src, RaggedRows) and lines.corpus.src.tokens.dtype == np.uint8
    assert [row.tolist() for row in lines.corpus.src] == [[good, good], vocab.encode(["bad"]), [UNK]]
    assert lines.corpus.batch([2, 1, 0]).tgt_out[:, 0].tolist() == [FIRST + 1, FIRST, FIRST + 1]
    assert lines.references == ["pos", "neg", "pos"] and lines.numbers == [0, 1, 2]
    others = [LabelledText("mixed", "so so"), LabelledText("", "\u3000")]
    corpus = Classification().encode(others, vocabularies).corpus
    assert corpus.batch([0, 1]).tgt_out[:, 0].tolist() == [UNK, EOS] and list(corpus.src[1]) == [UNK]
    assert [list(row) for row in corpus.tgt] == [[UNK], []]


@pytest.mark.parametrize("lines", ["foo\tthe film\n", "film\tneg\nplot\tpos\nneg\tthe\n" * 9])
def test_most_dev_labels_must_occur_in_train(tmp_path: Path, lines: str) -> None:
    (tmp_path / "train").write_text("pos\tgood film\nneg\tbad film\n" * 3)
    (tmp_path / "dev").write_text(lines)
    config = ClassificationData(task="classification", folder=str(tmp_path), train="train", dev="dev")
    with pytest.raises(InputError, match="dev: most labels do not occur in the training data"):
        Classification.load(config)
    (tmp_path / "dev").write_text("pos\tfilm\nnew\tfilm\n")
    assert len(Classification.load(config)[1].dev.corpus) == 2


def test_most_test_labels_must_be_known(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("pos\tgood film\nneg\tbad film\n" * 3)
    (tmp_path / "test").write_text("good film\tpos\nbad film\tneg\n" * 5)
    data = {"task": "classification", "train": "train", "dev": "train", "test": "test"}
    run = untrained_run(tmp_path, data, {"architecture": "classifier", "d_model": 4})
    config = ClassificationData(folder=str(tmp_path), **data)
    assert len(task_of_run(run).split(run, config, "dev").corpus) == 6
    with pytest.raises(InputError, match=r"test: most labels are unknown to the run.* label 'good film', text 'pos'"):
        task_of_run(run).split(run, config, "test")


@pytest.mark.parametrize("first", ["sentiment\ttext\n", ""])
def test_first_line_with_a_unique_label_warns(tmp_path: Path, first: str) -> None:
    lines = "".join(f"pos\tgood film {number}\nneg\tbad film {number}\n" for number in range(10))
    (tmp_path / "train").write_text(first + lines)
    config = ClassificationData(task="classification", folder=str(tmp_path), train="train")
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        Classification.load(config)
        if first:
            Classification.load(config.model_copy(update={"header": True}))
    messages = [str(note.message) for note in notes]
    hint = "train: line 1 is read as the only document with the label 'sentiment'; if it is a header, set data.header="
    assert len(messages) == bool(first) and all(hint in message for message in messages)


def test_a_known_label_is_not_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "train").write_text("pos\tgood film\nneg\tbad film\n" * 3)
    data = {"task": "classification", "train": "train", "dev": "train"}
    run = untrained_run(tmp_path, data, {"architecture": "classifier", "d_model": 4})
    task = task_of_run(run)
    lines = ["pos\tgood film", "good\tfilm", "good film"]
    assert task.read(lines, "x", run, gold=False).titles == ["good film", "good\tfilm", "good film"]
