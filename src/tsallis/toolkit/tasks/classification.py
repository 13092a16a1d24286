"""Classification of documents, with lines of `label<TAB>text`."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import regex  # type: ignore[import-untyped]
from pydantic import Field, model_validator

from tsallis.errors import IgnoredInputWarning, InputError, describe, shorten
from tsallis.models.batch import Batch
from tsallis.toolkit.config import ON_RESUME, Alpha, Basis, Count, Density, Depth, FileName, Section, Size
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import find_packed
from tsallis.toolkit.data.ragged import RaggedRows, type_for
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.base import Task, count_columns, find_file, split_name
from tsallis.toolkit.tasks.labels import LabelModel, LabelTask, label_attention
from tsallis.toolkit.tasks.types import Attention, Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.run_folder import Run

MIN_DOCUMENTS = 10  # with fewer documents than this, the checks of labels are weaker
ENDINGS = ("", ".tsv", ".xz", ".gz", ".tsv.xz", ".tsv.gz")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)  # line breaks in reviews from web pages
# Use regex, because \w of re excludes combining marks, and so splits words of many scripts.
WORD = regex.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class LabelColumnsConfig(Section):
    """Numbers of the columns of a line, from 1. Other columns are ignored."""

    label: Count = 1
    text: Count | Literal[-1] = -1  # column of the text; -1 means the last column

    @model_validator(mode="after")
    def _check_different(self) -> LabelColumnsConfig:
        if self.label == self.text:
            raise ValueError(f"label and text must be different columns, found {self.label} for both")
        return self


class ClassificationData(Section):
    """Documents and their classes: lines of `label<TAB>text`.

    `train: train` names the file train or train.tsv in the folder, plain or compressed (.xz, .gz).
    """

    task: Literal["classification"]
    folder: Annotated[FileName, ON_RESUME] = "."
    train: Annotated[FileName, ON_RESUME]
    dev: Annotated[FileName | None, ON_RESUME] = None
    test: Annotated[FileName | None, ON_RESUME] = None
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train to hold out as dev, if dev is not set
    columns: LabelColumnsConfig = LabelColumnsConfig()
    header: bool = False  # whether train begins with a header; the same line is ignored in other files
    max_length: Count = 256  # maximum number of words per document; the rest is ignored
    min_count: Count = 5  # minimum number of occurrences of a word in train; rarer words are unknown


class ClassifierConfig(LabelModel):
    """Arguments of `tsallis.models.LabelDecoder` for documents."""

    architecture: Literal["classifier"] = "classifier"
    d_model: Size = Field(128, multiple_of=2)
    d_embedding: Size | None = None
    layers: Depth = 1
    dropout: float = Field(0.3, ge=0, lt=1)
    num_basis: Basis = Field(64, multiple_of=2)
    density: Density | Alpha | None = None
    cell: Literal["lstm", "gru"] = "lstm"


@dataclass(frozen=True)
class LabelColumns:
    """Numbers of the label column and the text column, counted from 1. In `text`, -1 means the last column."""

    label: Annotated[int, Field(ge=1)] = 1
    text: int = -1


@dataclass(frozen=True)
class Classification(LabelTask):
    """Task of classifying documents. Each line is a document; a reference line also contains the label."""

    max_length: Annotated[int, Field(ge=1)] | None = None
    columns: LabelColumns = LabelColumns()
    header: tuple[str, ...] = ()  # header columns of the training data; empty if there is no header

    name = "classification"
    Config = ClassificationData
    models: ClassVar[Mapping[str, type[ModelSection]]] = {"classifier": ClassifierConfig}
    noun = "label"

    @property
    def formats(self) -> tuple[str, str]:
        label, text = self.columns.label, self.columns.text
        known = {label: "label", label + 1 if text == -1 else text: "text"}
        return "text", "<TAB>".join(known.get(column, "...") for column in range(1, max(known) + 1))

    @classmethod
    def load(cls, config: ClassificationData) -> tuple[Task, Data]:
        train, dev = cls.read_split(config, "train"), cls.read_split(config, "dev")
        task = cls.of_config(config)
        task.check_columns([*train, *dev] if config.dev is None else train, cls.files(config, "train")[0])
        for name, examples in (("train", train), ("dev", dev)):
            if not examples:
                raise InputError(f"data.{name}: no documents found (data.held_out is {config.held_out:g})")
        names = label_names(train)
        if len(names) < 2:
            path = cls.files(config, "train")[0]
            raise InputError(f"{path}: expected documents with at least two labels, found only {describe(names[0])}")
        if config.dev is not None:
            (path,) = cls.files(config, "dev")
            if fault := task.find_unknown(dev, names, 1):
                raise InputError(f"{path}: most labels do not occur in the training data. {fault}")
        if not config.header and len(train) >= MIN_DOCUMENTS and [e.label for e in train].count(train[0].label) == 1:
            hint = f"{cls.files(config, 'train')[0]}: line 1 is read as the only document with the label"
            hint += f" {describe(train[0].label)}; if it is a header, set data.header=true"
            warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
        src = Vocabulary.build((words(e.text) for e in train), config.min_count)
        vocabularies = Vocabularies(src, Vocabulary(names))
        return task, Data(task.encode(train, vocabularies).corpus, task.encode(dev, vocabularies), vocabularies)

    @classmethod
    def of_config(cls, config: ClassificationData) -> Classification:
        """Return the task of a configuration, with the header of the training data if there is one."""
        task = cls(config.max_length, LabelColumns(**config.columns.model_dump()))
        if not config.header:
            return task
        return replace(task, header=task.read_header(cls.files(config, "train")[0]))

    @classmethod
    def config_facts(cls, config: ClassificationData) -> dict[str, Any]:
        return {"max_length": config.max_length, "columns": config.columns.model_dump()}

    def check_columns(self, examples: Sequence[LabelledText], path: Path) -> None:
        """Raise if the columns may have been swapped.

        Raises:
            InputError: If labels have more words than texts, or there are more than half as many labels as documents.
        """
        labels, count = {e.label for e in examples}, len(examples)
        fault = f"{len(labels)} different labels in {count} lines"
        if count < 3:
            return
        if sum(len(e.label.split()) for e in examples) > sum(len(e.text.split()) for e in examples):
            fault = "labels have more words than texts"
        elif 2 * len(labels) <= count or (count < MIN_DOCUMENTS and len(labels) < count):
            return
        example, swapped_columns = examples[-1], "{label: 2, text: 1}"
        raise InputError(
            f"{path}: the columns seem to be wrong: {fault}. The last line is read as label {describe(example.label)}, "
            f"text {describe(example.text)}; to choose other columns, set data.columns, such as "
            f"data.columns='{swapped_columns}', "
            "and set data.header=true if the first line is a header"
        )

    @classmethod
    def examples(cls, config: ClassificationData, split: str) -> list[LabelledText]:
        """Read the documents of a split; without a dev file, a share of train is held out as dev."""
        (path,) = cls.files(config, split)
        texts = read_labelled(path, cls.of_config(config))
        if config.dev is not None or split == "test":
            return texts
        splits = hold_out(texts, config.held_out, group=lambda e: e.text, stratify=lambda e: e.label)
        return splits[split == "dev"]

    @classmethod
    def files(cls, config: ClassificationData, split: str) -> list[Path]:
        held_out = config.dev is None and split != "test"
        name = config.train if held_out else split_name(config, split)
        return [find_file(config.folder, name, ENDINGS)]

    def parse(self, line: str, origin: str, gold: bool) -> LabelledText:
        if not gold:
            return LabelledText("", line)
        if (example := self._split(line)) is None:
            found = f"found {count_columns(line)}: {shorten(line)}"
            raise InputError(f"{origin}: expected {self.formats[True]}, {found}")
        if not example.label or not example.text:
            missing = "text" if example.label else "label"
            raise InputError(f"{origin}: expected {self.formats[True]}, found an empty {missing}")
        return example

    def parse_lines(
        self, lines: Iterable[tuple[int, str]], name: str, run: Run, gold: bool, first: int, **options: Any
    ) -> list[tuple[int, LabelledText]]:
        """Return the documents on numbered lines.

        Raises:
            InputError: If most labels are unknown to the run.
        """
        labels: Any = run.tgt_vocab
        lines = lines if gold else ((number, self._without_label(line, labels)) for number, line in lines)
        examples = super().parse_lines(lines, name, run, gold, first, **options)
        if gold and (fault := self.find_unknown([e for _, e in examples], labels, MIN_DOCUMENTS)):
            number = next(number for number, e in examples if e.label not in labels)
            raise InputError(f"{name}:{first + number + 1}: most labels are unknown to the run. {fault}")
        return examples

    def split(self, run: Run, config: ClassificationData, split: str, **options: Any) -> Lines:
        lines = super().split(run, config, split, **options)
        labels: Any = run.tgt_vocab
        if fault := self.find_unknown([*map(LabelledText, lines.references, lines.titles)], labels, MIN_DOCUMENTS):
            (path,) = self.files(config, split)
            raise InputError(f"{path}: most labels are unknown to the run. {fault}")
        return lines

    def find_unknown(self, examples: Sequence[LabelledText], labels: Collection[str], min_examples: int) -> str:
        """Describe the first example with an unknown label if most labels of `min_examples` or more are unknown."""
        unknown = [e for e in examples if e.label not in labels]
        if len(examples) < min_examples or 2 * len(unknown) <= len(examples):
            return ""
        label, text = describe(unknown[0].label), describe(unknown[0].text)
        return f"A line is read as label {label}, text {text}; expected lines {self.formats[True]}"

    def _without_label(self, line: str, labels: Collection[str]) -> str:
        """Return the text of a line that also has a label."""
        example = self._split(line)
        return line if example is None or example.label not in labels else example.text

    def _split(self, line: str) -> LabelledText | None:
        """Return the label and the text of a line, or None if the line has too few columns."""
        fields, (label, text) = line.split("\t"), (self.columns.label, self.columns.text)
        if len(fields) < max(label + (text == -1), text):
            return None
        return LabelledText(fields[label - 1].strip(), fields[text - (text > 0)].strip())

    def holds_symbols(self, example: LabelledText) -> bool:
        return bool(words(example.text))

    def encode(self, examples: Sequence[LabelledText], vocabularies: Vocabularies) -> Lines:
        """Encode documents and labels. A target is the symbol of the label, or empty if there is no label."""
        src, tgt, count = vocabularies.src, vocabularies.tgt, len(examples)
        rows = (src.encode(words(e.text)[: self.max_length] or [""]) for e in examples)
        labels = [e.label for e in examples]
        corpus = Corpus(RaggedRows.of(rows, type_for(len(src))), [tgt.encode([x] if x else []) for x in labels])
        return Lines(corpus, labels, [e.text for e in examples], list(range(count)), count)

    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        return label_attention(run.model.classifier.attention(batch.src, batch.src_lengths))

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        symbols = super().attention_symbols(run, source, target, title)
        # Unknown words keep their spelling.
        return {**symbols, "source": words(title)[: len(source)] or [""]}


class LabelledText(NamedTuple):
    """Document and its class."""

    label: str
    text: str


def read_labelled(path: Path | str, task: Classification = Classification()) -> list[LabelledText]:
    """Return the labelled documents of a UTF-8 file (plain, `.gz` or `.xz`).

    By default, the first column is the label and the last one the text. Blank lines and columns between
    them are ignored, with a warning if the number of columns varies.

    Raises:
        InputError: If the file is missing, empty or damaged, or a line is malformed.
    """
    lines = [*task.example_lines(path)]
    examples = [task.parse(line, origin, True) for origin, line in lines]
    counts = [line.count("\t") + 1 for _, line in lines]
    wide = [origin for (origin, _), count in zip(lines, counts, strict=True) if count > min(counts)]
    if task.columns.text == -1 and wide:
        hint = f"found {max(counts)} columns, elsewhere {min(counts)}; only the last is read as text "
        hint += f"({len(wide)} line{'s' * (len(wide) > 1)})"
        warnings.warn(f"{wide[0]}: {hint}", IgnoredInputWarning, stacklevel=2)
    return examples


def find_split(folder: Path | str, name: str) -> Path | None:
    """Return the file of a split: `name` or `name.tsv` in the folder, plain or compressed; None if it is missing."""
    return find_packed(Path(folder) / name, ENDINGS)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, with punctuation marks as separate words.

    >>> words("It's great!<br /><br />10/10")
    ["it's", 'great', '!', '10', '/', '10']
    >>> words("नमस्ते दुनिया")
    ['नमस्ते', 'दुनिया']
    """
    found: list[str] = WORD.findall(BREAK.sub(" ", text).lower())
    return found


def label_names(examples: Iterable[LabelledText]) -> list[str]:
    """Return all labels in code-point order, which is the order of the classes.

    >>> label_names([LabelledText("pos", "good"), LabelledText("neg", "bad"), LabelledText("pos", "fine")])
    ['neg', 'pos']
    """
    return sorted({example.label for example in examples})
