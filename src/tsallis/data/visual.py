"""Questions about images and their answers: `image<TAB>question<TAB>answer` lines, words, and batches."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from torch import Tensor

from tsallis.data.classification import Documents
from tsallis.data.images import Pictures
from tsallis.data.parallel import stream_lines
from tsallis.data.ragged import Ragged, type_for
from tsallis.data.splits import hold_out
from tsallis.data.vocabulary import Vocabulary
from tsallis.errors import InputError, describe, shorten

COLUMNS = ("image", "question", "answer")
WORD = re.compile(r"\d+|[^\W\d]+(?:['’][^\W\d]+)*|[^\w\s]")
UNKNOWN = -100  # the class of an answer that is none: losses leave it out, and no model is right


class Question(NamedTuple):
    """A question about an image and its answer, which is empty where it isn't known."""

    image: str
    question: str
    answer: str = ""


def read_questions(path: Path | str, pictures: Pictures | None = None, gold: bool = True) -> list[Question]:
    """The questions of a UTF-8 file, plain, `.gz` or `.xz`, one a line, below a header `image question answer` or none.

    Args:
        path: of the file.
        pictures: where every image must be.
        gold: lines hold the answer too; otherwise it may be missing, and is left out.

    Raises:
        InputError: a file that is missing, empty or damaged, a malformed line or an unknown image, with its place.
    """
    lines = stream_lines(path, "<TAB>".join(COLUMNS))
    questions = [question for _, question in parse_questions(lines, str(path), pictures, gold)]
    if not questions:
        raise InputError(f"{path}: a header and no questions")
    return questions


def parse_questions(
    lines: Iterable[str], name: str, pictures: Pictures | None = None, gold: bool = True, first: int = 0
) -> list[tuple[int, Question]]:
    """Return the questions of lines, each with its line's number from 0; the first line may be a header.

    Args:
        lines: of the file `name`.
        pictures: where every image must be.
        gold: lines hold the answer too; otherwise it may be missing, and is left out.
        first: the number of the first of them.

    Raises:
        InputError: a malformed line or an unknown image, with its place.
    """
    questions = []
    for number, line in enumerate(lines, first):
        if number == 0 and tuple(field.strip().lower() for field in line.split("\t")) in (COLUMNS, COLUMNS[:2]):
            continue
        question = parse_question(line, f"{name}:{number + 1}", gold)
        if pictures is not None and question.image not in pictures:
            raise InputError(f"{name}:{number + 1}: there is no image {describe(question.image)}")
        questions.append((number, question))
    return questions


def parse_question(line: str, place: str, gold: bool = True) -> Question:
    """One line.

    >>> parse_question("image3\\twhat is on the desk\\tbook, scissor", "train.tsv:4")
    Question(image='image3', question='what is on the desk', answer='book, scissor')
    >>> parse_question("image3\\twhat is on the desk", "questions.tsv:1", gold=False)
    Question(image='image3', question='what is on the desk', answer='')
    """
    expected = "<TAB>".join(COLUMNS if gold else COLUMNS[:2])
    fields = [field.strip() for field in line.split("\t")]
    if len(fields) != 3 and (gold or len(fields) != 2):
        raise InputError(f"{place}: expected {expected}, found {len(fields)} columns: {shorten(line)}")
    empty = next((name for name, field in zip(COLUMNS[: 2 + gold], fields, strict=False) if not field), None)
    if empty is not None:
        raise InputError(f"{place}: expected {expected}, found an empty {empty}")
    return Question(fields[0], fields[1], fields[2] if gold else "")


def question_words(text: str) -> list[str]:
    """Return the words of a question in lower case; numbers and marks of punctuation are words of their own.

    >>> question_words("What's left of the chair2, in Image10?")
    ["what's", 'left', 'of', 'the', 'chair', '2', ',', 'in', 'image', '10', '?']
    """
    return WORD.findall(text.lower())


def answer_kind(answer: str) -> str:
    """Return the type of an answer: "yes/no", "number" or "other" (Martins et al. 2020, table 2).

    >>> [answer_kind(answer) for answer in ("Yes", "11", "book, scissor")]
    ['yes/no', 'number', 'other']
    """
    if answer.lower() in ("yes", "no"):
        return "yes/no"
    return "number" if answer.isdecimal() else "other"


def answer_names(questions: Iterable[Question], most: int | None = None) -> list[str]:
    """Return the answers, the most frequent first, ties in code-point order; an answer's class is its place.

    Args:
        questions: of a training set.
        most: so many at most.

    >>> answer_names([Question("1", "?", "no"), Question("2", "?", "red"), Question("3", "?", "no")])
    ['no', 'red']
    """
    if most is not None and most < 1:
        raise ValueError(f"most must be at least 1, got {most}")
    counts = Counter(question.answer for question in questions)
    return sorted(counts, key=lambda answer: (-counts[answer], answer))[:most]


def split_by_image(
    questions: Sequence[Question], share: float = 0.1, seed: int = 0
) -> tuple[list[Question], list[Question]]:
    """The questions about a share of the images taken out of the rest: what stays, and what was taken.

    Which images depends on their names and the seed alone, and no image is on both sides.

    Raises:
        ValueError: a share that is not between 0 and 1.

    >>> questions = [Question(str(i // 2), "what is it?", "a box") for i in range(20)]
    >>> rest, taken = split_by_image(questions, 0.2)
    >>> len(rest), len({question.image for question in taken})
    (16, 2)
    """
    return hold_out(questions, lambda q: q.image, share, seed)


@dataclass(frozen=True)
class QuestionBatch:
    """Padded questions and their images."""

    images: Tensor  # [batch, height, width, channels]
    src: Tensor  # [batch, src], padded with 0
    src_lengths: Tensor  # [batch]
    labels: Tensor  # [batch], numbers of answers, -100 where the answer is none of them
    index: tuple[int, ...]  # where the rows stand in the data


class Questions:
    """Questions in numbers, and the images they are about.

    Args:
        documents: symbols of the questions, and numbers of their answers as labels.
        names: of their images.
        pictures: where the images are.

    Raises:
        ValueError: not as many names as questions.

    >>> from tsallis.data.images import ArrayPictures
    >>> asked = [Question("1", "what is it?", "a box"), Question("0", "is it red?", "yes")]
    >>> vocab = Vocabulary.build(question_words(q.question) for q in asked)
    >>> pictures = ArrayPictures(np.zeros((2, 4, 5, 3), np.uint8))
    >>> batch = Questions.encode(asked, vocab, ["yes"], pictures).batch([0, 1])
    >>> batch.images.shape, batch.src_lengths.tolist(), batch.labels.tolist()
    (torch.Size([2, 4, 5, 3]), [4, 4], [-100, 0])
    """

    def __init__(self, documents: Documents, names: Sequence[str], pictures: Pictures) -> None:
        if len(names) != len(documents):
            raise ValueError(f"there must be an image for each question, got {len(names)} for {len(documents)}")
        self.documents, self.names, self.pictures = documents, list(names), pictures

    @classmethod
    def encode(
        cls,
        questions: Sequence[Question],
        vocab: Vocabulary,
        answers: Sequence[str],
        pictures: Pictures,
        max_length: int | None = None,
    ) -> Questions:
        """Questions by their words, of which the first `max_length` count; one without any is one unknown word.

        An answer that is not among `answers` has the class -100.
        """
        number = {answer: i for i, answer in enumerate(answers)}
        rows = (vocab.encode(question_words(q.question)[:max_length] or [""]) for q in questions)
        labels = np.array([number.get(q.answer, UNKNOWN) for q in questions], np.int64)
        documents = Documents(Ragged.of(rows, type_for(len(vocab))), labels)
        return cls(documents, [q.image for q in questions], pictures)

    def __len__(self) -> int:
        return len(self.documents)

    def lengths(self) -> Tensor:
        """[rows] symbols of each, as int32."""
        return self.documents.lengths()

    def batch(self, index: Sequence[int], epoch: int = 0) -> QuestionBatch:
        """Return some rows, the same in every epoch."""
        rows = self.documents.batch(index, epoch)
        images = self.pictures.batch([self.names[i] for i in rows.index])
        return QuestionBatch(images, rows.src, rows.src_lengths, rows.labels, rows.index)

    def batches(self, size: int) -> Iterator[QuestionBatch]:
        """Yield all rows in their order."""
        if size < 1:
            raise ValueError(f"size must be at least 1, got {size}")
        for start in range(0, len(self), size):
            yield self.batch(range(start, min(start + size, len(self))))

    def digest(self) -> str:
        """A hash of all symbols, answers and names of images in their order; what the images show is no part of it."""
        names = "\n".join(self.names).encode()
        return hashlib.sha256(f"{self.documents.digest()} {hashlib.sha256(names).hexdigest()}".encode()).hexdigest()
