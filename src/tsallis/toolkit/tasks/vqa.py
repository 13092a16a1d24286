"""Visual question answering, with lines of `image<TAB>question<TAB>answer`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import regex  # type: ignore[import-untyped]
import torch
from numpy.typing import NDArray
from pydantic import Field

from tsallis.errors import InputError, OptionError, describe
from tsallis.models.batch import Batch
from tsallis.symbols import UNK
from tsallis.toolkit.config import ON_RESUME, Alpha, Basis, Count, Depth, FileName, Map, Pixels, Section, Settings, Size
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.images import Pictures, open_pictures
from tsallis.toolkit.data.io import Ignored, find_packed, number_lines, read_lines
from tsallis.toolkit.data.ragged import RaggedRows, type_for
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.base import Task, find_file, split_columns, split_name
from tsallis.toolkit.tasks.labels import LabelModel, LabelTask, label_attention
from tsallis.toolkit.tasks.types import Attention, Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.run_folder import Run

COLUMNS = ("image", "question", "answer")
# Use regex, because \w of re excludes combining marks, and so splits words of many scripts.
WORD = regex.compile(r"\d+|[^\W\d]+(?:['’][^\W\d]+)*|[^\w\s]")


class SplitImages(Section):
    """Paths of the images of each split; by default, dev uses the images of train."""

    train: Annotated[FileName, ON_RESUME]  # images of the training questions
    dev: Annotated[FileName | None, ON_RESUME] = None  # images of the development questions
    test: Annotated[FileName | None, ON_RESUME] = None  # images of the test questions


class VisualData(Section):
    """Questions about images: files with lines of `image<TAB>question<TAB>answer`, plain or compressed (.xz, .gz).

    Images are rows of an array file (.npy, .npy.xz), or JPEG and PNG files in a folder or a .tar archive.
    """

    task: Literal["visual"]
    folder: Annotated[FileName, ON_RESUME] = "."
    train: Annotated[FileName, ON_RESUME]
    dev: Annotated[FileName | None, ON_RESUME] = None
    test: Annotated[FileName | None, ON_RESUME] = None
    images: Annotated[FileName | SplitImages, ON_RESUME]
    size: tuple[Pixels, Pixels] | None = None  # height and width to which photographs are resized
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train's images to hold out as dev, if dev is not set
    max_length: Count = 32  # maximum number of words per question; the rest is ignored
    min_count: Count = 1  # minimum number of occurrences of a word in train; rarer words are unknown
    answers: Annotated[Count, Field(ge=2)] | None = None  # use only the most frequent answers in train; default: all


class AnswererConfig(LabelModel):
    """Arguments of `tsallis.models.LabelDecoder` for questions about images."""

    architecture: Literal["answerer"] = "answerer"
    d_model: Size = 128
    heads: Size = 4
    layers: Depth = 2
    d_ff: Size | None = None
    dropout: float = Field(0.1, ge=0, lt=1)
    d_embedding: Size | None = None
    d_flat: Size | None = None
    d_fused: Size | None = None
    stages: Depth = 3
    positions: bool = True
    attention: Literal["discrete", "continuous", "combined"] = "continuous"
    transform: Map | Alpha = "softmax"
    num_basis: Basis = 100
    basis: Literal["image", "image-paper"] = "image"
    matching: Literal["scale", "covariance"] = "covariance"
    density: Literal["gaussian", "truncated_paraboloid"] | Alpha | None = None

    def arguments(self, data: Data, settings: Settings, source: Run | None = None) -> dict[str, Any]:
        assert data.vocabularies.images is not None
        image = data.vocabularies.images(torch.zeros(1, dtype=torch.long))  # [1, height, width, channels]
        height, width = image.shape[1:3]
        if not image.is_floating_point() and min(height, width) < 2**self.stages:
            max_stages = min(height, width).bit_length() - 1
            size = f"the size of the images, {height} x {width}"
            raise InputError(f"model.stages must be at most {max_stages} for {size}, got {self.stages}")
        images = {"image": "features" if image.is_floating_point() else "cnn", "d_image": image.shape[-1]}
        return {"kind": "questions", **images, **super().arguments(data, settings, source)}


class ImageQuestion(NamedTuple):
    """Question, and the collection of images that contains its image."""

    question: Question
    pictures: Pictures


@dataclass(frozen=True)
class Visual(LabelTask):
    """Task of answering questions about images.

    A line is `image<TAB>question`, or `image<TAB>question<TAB>answer` with a reference.
    """

    images: Annotated[str, Field(pattern=r"^[^\x00]+$")] | None = None  # default path of images
    # Height and width to which images are resized.
    size: Annotated[list[Annotated[int, Field(ge=1, lt=2**31)]], Field(min_length=2, max_length=2)] | None = None
    max_length: Annotated[int, Field(ge=1)] | None = None

    name = "visual"
    Config = VisualData
    models: ClassVar[Mapping[str, type[ModelSection]]] = {"answerer": AnswererConfig}
    noun = "answer"
    formats = ("image<TAB>question", "image<TAB>question<TAB>answer")
    options = ("images",)
    refusals: ClassVar[Mapping[str, str]] = {**Task.refusals, "serve": "requests can't contain images"}

    @classmethod
    def load(cls, config: VisualData) -> tuple[Task, Data]:
        train, dev = cls.read_split(config, "train"), cls.read_split(config, "dev")
        if not train or not dev:
            raise InputError(f"data.held_out: there are too few images to hold out {config.held_out:g} of them")
        images = _find_images(config, "test") or _find_images(config, "dev")
        task = cls(images, None if config.size is None else [*config.size], config.max_length)
        src = Vocabulary.build((question_words(e.question.question) for e in train), config.min_count)
        answers = answer_names([e.question for e in train], config.answers)
        if len(answers) < 2:
            path = _find_questions(config, "train")[0]
            raise InputError(f"{path}: expected questions with at least two answers, found only {describe(answers[0])}")
        vocabularies = Vocabularies(src, Vocabulary(answers), ImageStore())
        return task, Data(task.encode(train, vocabularies).corpus, task.encode(dev, vocabularies), vocabularies)

    @classmethod
    def examples(cls, config: VisualData, split: str, images: Path | None = None) -> list[ImageQuestion]:
        """Read the questions of a split; `images` replaces the path of the split's images.

        Without a dev file, the questions about a share of train's images are held out as dev.
        """
        path, held_out = _find_questions(config, split)
        source = images or _find_images(config, "train" if held_out else split)
        if source is None:
            raise InputError(f"data.images.{split} is not set: it must name the images of the {split} split")
        pictures = open_pictures(source, config.size)
        questions = read_questions(path, pictures)
        if held_out:
            questions = hold_out(questions, config.held_out, group=lambda q: q.image)[split == "dev"]
        return [ImageQuestion(question, pictures) for question in questions]

    @classmethod
    def files(cls, config: VisualData, split: str) -> list[Path]:
        """Return the file with questions and all files with images."""
        path, held_out = _find_questions(config, split)
        source = Path(_find_images(config, "train" if held_out else split) or path)
        images = sorted(file for file in source.iterdir() if file.is_file()) if source.is_dir() else [source]
        return [path, *(file for file in images if file != path)]

    @classmethod
    def config_facts(cls, config: VisualData) -> dict[str, Any]:
        return {"size": config.size, "max_length": config.max_length}  # without `images`, whose files may have moved

    def vocabularies(self, run: Run) -> Vocabularies:
        if run.model.image_store is None:
            member = getattr(run.model, "models", [run.model])[0]  # all members of an ensemble read the same images
            run.model.image_store = ImageStore(member.classifier.answerer.grid.check)
        return Vocabularies(run.src_vocab, run.tgt_vocab, run.model.image_store)

    def parse(self, line: str, origin: str, gold: bool) -> Question:
        return parse_question(line, origin, gold)

    def parse_lines(
        self,
        lines: Iterable[tuple[int, str]],
        name: str,
        run: Run,
        gold: bool,
        first: int,
        images: Path | str | None = None,
        **options: Any,
    ) -> list[tuple[int, ImageQuestion]]:
        source = images or self.images
        if source is None:
            raise OptionError(lambda spell: f"the run has no default images: set {spell('images')}", where=run.folder)
        store = self.vocabularies(run).images
        assert store is not None
        pictures = store.open(source, None if self.size is None else (self.size[0], self.size[1]))
        numbered = ((first + number, line) for number, line in lines)
        questions = parse_questions(numbered, name, pictures, gold)  # the first line may be a header
        return [(number - first, ImageQuestion(question, pictures)) for number, question in questions]

    def holds_symbols(self, example: ImageQuestion) -> bool:
        return bool(question_words(example.question.question))

    def encode(self, examples: Sequence[ImageQuestion], vocabularies: Vocabularies) -> Lines:
        """Encode questions. A source is the image's number and the question's words; a target is the answer."""
        src, tgt, store, count = vocabularies.src, vocabularies.tgt, vocabularies.images, len(examples)
        assert store is not None
        images = store.add((pictures, question.image) for question, pictures in examples)
        words = (src.encode(question_words(e.question.question)[: self.max_length] or [""]) for e in examples)
        rows = [[image, *row] for image, row in zip(images, words, strict=True)]
        answers = [e.question.answer for e in examples]
        targets = [tgt.encode([answer] if answer else []) for answer in answers]
        titles = [f"{e.question.image}: {e.question.question}" for e in examples]
        corpus = Corpus(RaggedRows.of(rows, type_for(max(len(src), len(store)))), targets)
        return Lines(corpus, answers, titles, list(range(count)), count)

    def count_unknown(self, source: Sequence[int] | NDArray[Any]) -> int:
        return super().count_unknown(source[1:])  # skip the image's number

    def unknown_symbols(self, run: Run, source: Sequence[int], title: str) -> list[str]:
        return [s for s, n in zip(question_words(title.partition(": ")[2]), source[1:], strict=False) if n == UNK]

    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        attention = run.model.classifier.read(batch.src, batch.src_lengths)[1].grid
        return label_attention(attention, attention.weights.shape[1:])

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        image = {"image": title.partition(": ")[0]}
        return {**image, **super().attention_symbols(run, source[1:], target, title)}


def _find_questions(config: VisualData, split: str) -> tuple[Path, bool]:
    """Return the file with the questions of a split, and whether dev is held out from that file."""
    held_out = config.dev is None and split != "test"
    name = config.train if held_out else split_name(config, split)
    return find_file(config.folder, name), held_out


def _find_images(config: VisualData, split: str) -> str | None:
    """Return the path of a split's images, or None if the configuration does not name any."""
    source = config.images
    if isinstance(source, SplitImages):
        name = getattr(source, split) or (source.train if split == "dev" else None)
    else:
        name = source
    if name is None:
        return None
    path = Path(config.folder) / name
    return str(path if path.is_dir() else find_packed(path) or path)


class Question(NamedTuple):
    """Question about an image, and the answer; an unknown answer is empty."""

    image: str
    question: str
    answer: str = ""


def read_questions(path: Path | str, pictures: Pictures | None = None, gold: bool = True) -> list[Question]:
    """Return the questions of a UTF-8 file (plain, `.gz` or `.xz`), one per line, with or without a header.

    Args:
        path: Path of the file.
        pictures: Collection that must contain every image.
        gold: Whether lines contain the answer. If False, the answer is optional and is ignored.

    Raises:
        InputError: If the file is missing, empty or damaged, a line is malformed, or an image is unknown.
    """
    ignored = Ignored()
    lines = number_lines(read_lines(path, "<TAB>".join(COLUMNS)), ignored, 2 + gold)
    questions = [question for _, question in parse_questions(lines, str(path), pictures, gold)]
    ignored.warn(str(path))
    if not questions:
        raise InputError(f"{path}: expected questions after the header, found none")
    return questions


def parse_questions(
    lines: Iterable[tuple[int, str]], name: str, pictures: Pictures | None = None, gold: bool = True
) -> list[tuple[int, Question]]:
    """Return the questions on lines, each with its line number from 0; the first line may be a header.

    Args:
        lines: Lines with their numbers from 0.
        name: Name of the file, for errors.
        pictures: Collection that must contain every image.
        gold: Whether lines contain the answer. If False, the answer is optional and is ignored.

    Raises:
        InputError: If a line is malformed or an image is unknown.
    """
    questions = []
    for number, line in lines:
        if number == 0 and tuple(field.strip().lower() for field in line.split("\t")) in (COLUMNS, COLUMNS[:2]):
            continue
        question = parse_question(line, f"{name}:{number + 1}", gold)
        if pictures is not None and question.image not in pictures:
            raise InputError(f"{name}:{number + 1}: image {describe(question.image)} does not exist")
        questions.append((number, question))
    return questions


def parse_question(line: str, origin: str, gold: bool = True) -> Question:
    """Return the question on a line.

    >>> parse_question("image3\\twhat is on the desk\\tbook, scissor", "train.tsv:4")
    Question(image='image3', question='what is on the desk', answer='book, scissor')
    >>> parse_question("image3\\twhat is on the desk", "questions.tsv:1", gold=False)
    Question(image='image3', question='what is on the desk', answer='')
    """
    expected = "<TAB>".join(COLUMNS if gold else COLUMNS[:2])
    fields = [field.strip() for field in split_columns(line, origin, expected, (3,) if gold else (2, 3))]
    empty = next((name for name, field in zip(COLUMNS[: 2 + gold], fields, strict=False) if not field), None)
    if empty is not None:
        raise InputError(f"{origin}: expected {expected}, found an empty {empty}")
    return Question(fields[0], fields[1], fields[2] if gold else "")


def question_words(text: str) -> list[str]:
    """Return the words of a question in lower case; numbers and punctuation marks are separate words.

    >>> question_words("What's left of the chair2, in Image10?")
    ["what's", 'left', 'of', 'the', 'chair', '2', ',', 'in', 'image', '10', '?']
    """
    found: list[str] = WORD.findall(text.lower())
    return found


def answer_names(questions: Iterable[Question], max_answers: int | None = None) -> list[str]:
    """Return all answers, most frequent first; ties are in code-point order.

    Args:
        questions: Questions of a training set.
        max_answers: Maximum number of answers.

    >>> answer_names([Question("1", "?", "no"), Question("2", "?", "red"), Question("3", "?", "no")])
    ['no', 'red']
    """
    counts = Counter(question.answer for question in questions)
    return sorted(counts, key=lambda answer: (-counts[answer], answer))[:max_answers]
