"""Documents and classes: lines, words, a split of one's own, rows and batches."""

from __future__ import annotations

import gzip
import lzma
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tsallis.data.batching import BatchPlan
from tsallis.data.classification import (
    Documents,
    LabelledText,
    find_split,
    label_names,
    read_labelled,
    split_off,
    words,
)
from tsallis.data.ragged import Ragged
from tsallis.data.vocabulary import UNK, Vocabulary
from tsallis.errors import InputError

LINES = "1\t8\tpos/3_8\tA fine film .\n0\t2\tneg/4_2\tIt hurts\u0085 truly .\n"
TAKEN = ["text 3", "text 9", "text 10"]
EXAMPLES = [LabelledText("1", "A fine film ."), LabelledText("0", "It hurts\u0085 truly .")]


def test_lines_plain_or_packed(tmp_path: Path) -> None:
    (tmp_path / "plain.tsv").write_text(LINES, encoding="utf-8", newline="\n")
    with lzma.open(tmp_path / "train.tsv.xz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write(LINES)
    with gzip.open(tmp_path / "dev.gz", "wt", encoding="utf-8", newline="\n") as stream:
        stream.write("pos\tgood\n")
    assert read_labelled(tmp_path / "plain.tsv") == read_labelled(tmp_path / "train.tsv.xz") == EXAMPLES
    assert find_split(tmp_path, "train") == tmp_path / "train.tsv.xz"
    assert find_split(tmp_path, "plain.tsv") == tmp_path / "plain.tsv"
    found = find_split(tmp_path, "dev")
    assert found is not None and read_labelled(found) == [LabelledText("pos", "good")]
    assert find_split(tmp_path, "test") is None and find_split(tmp_path / "nowhere", "train") is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("pos\tgood\nonly text\n", r"f.tsv:2: expected label<TAB>text, found one column: 'only text'"),
        ("pos\tgood\npos\t \tx\nneg\t\n", r"f.tsv:3: expected label<TAB>text, found one column"),
        ("pos\tgood\n\n", r"f.tsv:2: expected label<TAB>text, found one column: ''"),
        ("", "the file is empty"),
    ],
    ids=["one column", "no text", "empty line", "empty file"],
)
def test_malformed_lines(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "f.tsv"
    path.write_text(content, encoding="utf-8", newline="\n")
    with pytest.raises(InputError, match=message):
        read_labelled(path)


def test_words() -> None:
    assert words("Don't miss it!<br /><BR>Ünly 10/10 ...") == [
        "don't", "miss", "it", "!", "ünly", "10", "/", "10", ".", ".", ".",
    ]  # fmt: skip
    assert words("the \u2018best\u2019 of o\u2019clock") == ["the", "‘", "best", "’", "of", "o’clock"]
    assert words(" \t ") == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.text("xyz", min_size=1, max_size=3)), max_size=60), st.randoms())
def test_a_split_of_ones_own(pairs: list[tuple[str, str]], chance: random.Random) -> None:
    examples = [LabelledText(*pair) for pair in pairs]
    rest, taken = split_off(examples, 0.25, seed=4)
    assert sorted(rest + taken) == sorted(examples)
    assert not {e.text for e in rest} & {e.text for e in taken}
    shuffled = chance.sample(examples, len(examples))
    assert [sorted(side) for side in split_off(shuffled, 0.25, seed=4)] == [sorted(rest), sorted(taken)]


def test_a_split_has_its_share_of_each_class() -> None:
    examples = [LabelledText("ab"[i % 4 == 0], f"text {i}") for i in range(400)]
    rest, taken = split_off(examples, 0.1)
    assert [sum(e.label == label for e in taken) for label in "ab"] == [30, 10] and len(rest) == 360
    assert split_off(examples, 0.1) == (rest, taken) != split_off(examples, 0.1, seed=1)
    assert [e for e in examples if e in set(rest)] == rest
    for share in (0.0, 1.0, float("nan")):
        with pytest.raises(ValueError, match="share must be between 0 and 1"):
            split_off(examples, share)


def test_the_split_stays_what_it_was() -> None:
    """Accuracies are compared across machines and versions: another dev set would be another number."""
    examples = [LabelledText("a", f"text {i}") for i in range(12)]
    assert [e.text for e in split_off(examples, 0.25)[1]] == TAKEN


def test_documents_in_numbers() -> None:
    examples = [LabelledText("pos", "good good film"), LabelledText("neg", "bad"), LabelledText("pos", "\u200b")]
    vocab = Vocabulary.build(words(e.text) for e in examples[:2])
    labels = label_names(examples)
    assert labels == ["neg", "pos"]
    documents = Documents.encode(examples, vocab, labels, max_length=2)
    good = vocab.encode(["good"])[0]
    assert [row.tolist() for row in documents.src] == [[good, good], vocab.encode(["bad"]), [UNK]]
    assert documents.src.tokens.dtype == np.uint8 and documents.labels.tolist() == [1, 0, 1]
    assert documents.lengths().tolist() == [2, 1, 1] and len(documents) == 3
    empty = Documents.encode([LabelledText("pos", "\u3000")], vocab, labels)
    assert empty.src[0].tolist() == [UNK]
    with pytest.raises(InputError, match="label 'mixed' is unknown, expected one of neg, pos"):
        Documents.encode([LabelledText("mixed", "so so")], vocab, labels)
    with pytest.raises(ValueError, match="a label for each document, got 1 for 2"):
        Documents(Ragged.of([[4], [5]]), np.array([0]))
    with pytest.raises(ValueError, match="document 1 has no symbols"):
        Documents(Ragged.of([[4], []]), np.array([0, 1]))


@given(st.lists(st.lists(st.integers(4, 99), min_size=1, max_size=9), min_size=1, max_size=12), st.randoms())
def test_rows_come_back_whole(rows: list[list[int]], chance: random.Random) -> None:
    labels = np.array([chance.randint(0, 3) for _ in rows])
    documents = Documents(Ragged.of(rows, np.uint16), labels)
    index = chance.sample(range(len(rows)), chance.randint(1, len(rows)))
    batch = documents.batch(index)
    assert batch.index == tuple(index) and batch.src.dtype == batch.labels.dtype == batch.src_lengths.dtype
    assert batch.src.dtype == torch.long and batch.labels.tolist() == labels[index].tolist()
    assert batch.src.shape[1] == max(len(rows[i]) for i in index)
    for row, i in enumerate(index):
        length = int(batch.src_lengths[row])
        assert batch.src[row, :length].tolist() == rows[i] and (batch.src[row, length:] == 0).all()
    seen = [batch.index for batch in documents.batches(5)]
    assert sorted(i for part in seen for i in part) == list(range(len(rows)))
    widths = [len(rows[i]) for part in seen for i in part]
    assert widths == sorted(widths, reverse=True) and max(map(len, seen)) <= 5


def test_batches_of_a_plan() -> None:
    documents = Documents(Ragged.of([[4] * n for n in (3, 1, 2, 5)]), np.zeros(4, np.int64))
    plan = BatchPlan(documents.lengths(), batch_size=2, seed=1)
    assert sorted(i for rows in plan.epoch(0) for i in documents.batch(rows).index) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="at least one row"):
        documents.batch([])
    with pytest.raises(ValueError, match="size must be at least 1, got 0"):
        list(documents.batches(0))


def test_digests() -> None:
    rows, labels = Ragged.of([[4, 5], [6]]), np.array([0, 1])
    first = Documents(rows, labels).digest()
    assert first == Documents(Ragged.of([[4, 5], [6]], np.uint8), labels.astype(np.int32)).digest()
    others = [Documents(rows, labels[::-1]), Documents(Ragged.of([[4], [5, 6]]), labels)]
    assert len({first, *(d.digest() for d in others)}) == 3


def test_real_reviews(shared_data: Path) -> None:
    path = find_split(shared_data / "sentence_cls", "stsa.binary.dev.tsv")
    if path is None:
        pytest.skip("needs data: the sentence sets")
    examples = read_labelled(path)
    assert len(examples) == 872 and label_names(examples) == ["0", "1"]
    rest, taken = split_off(examples, 0.1)
    assert len(taken) == 87 and len(rest) == 785
