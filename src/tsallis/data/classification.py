"""Documents and their classes: `label<TAB>text` lines, words, and batches of padded rows."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tsallis.data.parallel import stream_lines
from tsallis.data.ragged import Ragged, digest_of, type_for
from tsallis.data.reading import find_packed
from tsallis.data.splits import hold_out
from tsallis.data.vocabulary import PAD, Vocabulary
from tsallis.errors import InputError, describe, shorten

EXPECTED = "label<TAB>text"
ENDINGS = ("", ".tsv", ".xz", ".gz", ".tsv.xz", ".tsv.gz")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)  # of lines, in reviews taken from web pages
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class LabelledText(NamedTuple):
    """A document and its class."""

    label: str
    text: str


def read_labelled(path: Path | str) -> list[LabelledText]:
    """The documents of a UTF-8 file, plain, `.gz` or `.xz`: the first column is the label, the last one the text.

    Columns between the two are left out.

    Raises:
        InputError: a file that is missing, empty or damaged, or a malformed line, each with its place.
    """
    lines = enumerate(stream_lines(path, EXPECTED), start=1)
    return [parse_labelled(line, f"{path}:{number}") for number, line in lines]


def parse_labelled(line: str, place: str) -> LabelledText:
    """One line.

    >>> parse_labelled("pos\\tA fine film.", "reviews.tsv:1")
    LabelledText(label='pos', text='A fine film.')
    """
    fields = line.split("\t")
    if len(fields) < 2:
        raise InputError(f"{place}: expected {EXPECTED}, found one column: {shorten(line)}")
    label, text = fields[0].strip(), fields[-1].strip()
    if not label or not text:
        raise InputError(f"{place}: expected {EXPECTED}, found an empty {'text' if label else 'label'}")
    return LabelledText(label, text)


def find_split(folder: Path | str, name: str) -> Path | None:
    """Return the file of a split in a folder, packed or not: `name`, or `name` with .tsv, .xz or .gz behind it."""
    return find_packed(Path(folder) / name, ENDINGS)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, each mark of punctuation one of its own.

    >>> words("It's great!<br /><br />10/10")
    ["it's", 'great', '!', '10', '/', '10']
    """
    return WORD.findall(BREAK.sub(" ", text).lower())


def split_off(
    examples: Sequence[LabelledText], share: float = 0.1, seed: int = 0
) -> tuple[list[LabelledText], list[LabelledText]]:
    """A share of the documents of each class taken out of the rest: what stays, and what was taken.

    Which ones depends on their texts and the seed alone, not on their order or on other documents, and one text is
    never on both sides.

    Raises:
        ValueError: a share that is not between 0 and 1.

    >>> examples = [LabelledText("ab"[i % 2], f"text {i}") for i in range(20)]
    >>> rest, taken = split_off(examples, 0.2)
    >>> len(rest), [example.label for example in taken].count("a")
    (16, 2)
    """
    return hold_out(examples, lambda e: e.text, share, seed, lambda e: e.label)


def label_names(examples: Iterable[LabelledText]) -> list[str]:
    """Return all labels in code-point order: a class's number is its place.

    >>> label_names([LabelledText("pos", "good"), LabelledText("neg", "bad"), LabelledText("pos", "fine")])
    ['neg', 'pos']
    """
    return sorted({example.label for example in examples})


@dataclass(frozen=True)
class DocumentBatch:
    """Padded documents."""

    src: Tensor  # [batch, src], padded with 0
    src_lengths: Tensor  # [batch]
    labels: Tensor  # [batch], numbers of classes
    index: tuple[int, ...]  # where the rows stand in the data


class Documents:
    """Documents in numbers.

    Args:
        src: symbols of each.
        labels: [rows] numbers of their classes.

    Raises:
        ValueError: not as many labels as documents, or a document without symbols.

    >>> documents = Documents(Ragged.of([[4, 5, 6], [4]]), np.array([1, 0]))
    >>> batch = documents.batch([1, 0])
    >>> batch.src.tolist(), batch.src_lengths.tolist(), batch.labels.tolist()
    ([[4, 0, 0], [4, 5, 6]], [1, 3], [0, 1])
    """

    def __init__(self, src: Ragged, labels: NDArray[np.int64]) -> None:
        if len(src) != len(labels):
            raise ValueError(f"there must be a label for each document, got {len(labels)} for {len(src)}")
        if not src.lengths.all():
            raise ValueError(f"document {int(src.lengths.argmin())} has no symbols")
        self.src, self.labels = src, np.asarray(labels, np.int64)

    @classmethod
    def encode(
        cls, examples: Sequence[LabelledText], vocab: Vocabulary, labels: Sequence[str], max_length: int | None = None
    ) -> Documents:
        """Documents by their words, of which the first `max_length` count; one without any is one unknown word.

        Raises:
            InputError: a label that is not among `labels`.
        """
        number = {label: i for i, label in enumerate(labels)}
        unknown = next((e.label for e in examples if e.label not in number), None)
        if unknown is not None:
            raise InputError(f"label {describe(unknown)} is unknown, expected one of {', '.join(labels)}")
        rows = (vocab.encode(words(e.text)[:max_length] or [""]) for e in examples)
        return cls(Ragged.of(rows, type_for(len(vocab))), np.array([number[e.label] for e in examples], np.int64))

    def __len__(self) -> int:
        return len(self.src)

    def lengths(self) -> Tensor:
        """[rows] symbols of each, as int32."""
        return torch.from_numpy(self.src.lengths.astype(np.int32))

    def batch(self, index: Sequence[int], epoch: int = 0) -> DocumentBatch:
        """Return some rows, the same in every epoch."""
        rows = [int(i) for i in index]
        if not rows:
            raise ValueError("a batch needs at least one row")
        flat, lengths = self.src.rows(rows)
        padded = np.full((len(rows), int(lengths.max())), PAD, np.int64)
        padded[np.arange(padded.shape[1]) < lengths[:, None]] = flat
        labels = torch.from_numpy(self.labels[rows])
        return DocumentBatch(torch.from_numpy(padded), torch.from_numpy(lengths), labels, tuple(rows))

    def batches(self, size: int) -> Iterator[DocumentBatch]:
        """Yield all rows, like lengths together, the longest first: what is too much for the memory shows at once."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        order = np.argsort(-self.src.lengths, kind="stable")
        for start in range(0, len(order), size):
            yield self.batch(order[start : start + size].tolist())

    def digest(self) -> str:
        """Return a hash of all symbols and labels in their order."""
        return hashlib.sha256(f"{digest_of(self.src)} {self.labels.astype('<i8').tobytes().hex()}".encode()).hexdigest()
