"""Classification of documents, with lines of `label<TAB>text`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from tsallis.errors import InputError
from tsallis.models.batch import Batch
from tsallis.toolkit.config import Alpha, Basis, Count, Density, Depth, FileName, Section, Size
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import find_packed, read_examples
from tsallis.toolkit.data.ragged import RaggedRows, type_for
from tsallis.toolkit.data.splits import hold_out
from tsallis.toolkit.data.vocabulary import Vocabulary
from tsallis.toolkit.tasks.base import Task, find_file, split_columns, split_name
from tsallis.toolkit.tasks.labels import LabelModel, LabelTask, label_attention
from tsallis.toolkit.tasks.types import Attention, Data, Lines, ModelSection, Vocabularies
from tsallis.toolkit.training.run_folder import Run

LINE_FORMAT = "label<TAB>text"
ENDINGS = ("", ".tsv", ".xz", ".gz", ".tsv.xz", ".tsv.gz")
BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)  # line breaks in reviews from web pages
WORD = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


class ClassificationData(Section):
    """Documents and their classes: lines of `label<TAB>text`. Columns between the two are ignored.

    `train: train` is the file train or train.tsv in the folder, plain or compressed (.xz, .gz).
    """

    task: Literal["classification"]
    folder: FileName = "."
    train: FileName
    dev: FileName | None = None
    test: FileName | None = None
    held_out: float = Field(0.1, gt=0, lt=1)  # share of train that is held out as dev, if dev is not set
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
class Classification(LabelTask):
    """Task of classifying documents, one per line; with references `label<TAB>text`."""

    max_length: Annotated[int, Field(ge=1)] | None = None

    name = "classification"
    Config = ClassificationData
    models: ClassVar[Mapping[str, type[ModelSection]]] = {"classifier": ClassifierConfig}
    noun = "label"
    columns = ("text", LINE_FORMAT)

    @classmethod
    def load(cls, config: ClassificationData) -> tuple[Task, Data]:
        train, dev = cls.read_split(config, "train"), cls.read_split(config, "dev")
        for name, examples in (("train", train), ("dev", dev)):
            if not examples:
                raise InputError(f"data.{name}: there are no documents (data.held_out: {config.held_out:g})")
        task = cls(config.max_length)
        src = Vocabulary.build((words(e.text) for e in train), config.min_count)
        vocabularies = Vocabularies(src, Vocabulary(label_names(train)))
        return task, Data(task.encode(train, vocabularies).corpus, task.encode(dev, vocabularies), vocabularies)

    @classmethod
    def examples(cls, config: ClassificationData, split: str) -> list[LabelledText]:
        """Read the documents of a split; if dev has no file, a share of train is held out."""
        (path,) = cls.files(config, split)
        texts = read_labelled(path)
        if config.dev is not None or split == "test":
            return texts
        sides = hold_out(texts, config.held_out, group=lambda e: e.text, stratify=lambda e: e.label)
        return sides[split == "dev"]

    @classmethod
    def files(cls, config: ClassificationData, split: str) -> list[Path]:
        held_out = config.dev is None and split != "test"
        name = config.train if held_out else split_name(config, split)
        return [find_file(config.folder, name, ENDINGS)]

    def parse(self, line: str, origin: str, gold: bool) -> LabelledText:
        return parse_labelled(line, origin) if gold else LabelledText("", line)

    def holds_symbols(self, example: LabelledText) -> bool:
        return bool(words(example.text))

    def encode(self, examples: Sequence[LabelledText], vocabularies: Vocabularies) -> Lines:
        """Encode documents and labels; a target is one symbol, or empty without a label."""
        src, tgt, count = vocabularies.src, vocabularies.tgt, len(examples)
        rows = (src.encode(words(e.text)[: self.max_length] or [""]) for e in examples)
        labels = [e.label for e in examples]
        corpus = Corpus(RaggedRows.of(rows, type_for(len(src))), [tgt.encode([x] if x else []) for x in labels])
        return Lines(corpus, labels, [e.text for e in examples], list(range(count)), count)

    def attention(self, run: Run, batch: Batch) -> dict[str, Attention]:
        return label_attention(run.model.classifier.attention(batch.src, batch.src_lengths))

    def attention_symbols(self, run: Run, source: Sequence[int], target: Sequence[int], title: str) -> dict[str, Any]:
        symbols = super().attention_symbols(run, source, target, title)
        return {
            **symbols,
            "source": words(title)[: len(source)] or [""],
        }  # the spelling in the text, also of unknown words


class LabelledText(NamedTuple):
    """Document and its class."""

    label: str
    text: str


def read_labelled(path: Path | str) -> list[LabelledText]:
    """Return the documents of a UTF-8 file, plain, `.gz` or `.xz`.

    The first column is the label, the last one the text. Other columns and blank lines are ignored.

    Raises:
        InputError: If the file is missing, empty or damaged, or a line is malformed.
    """
    return [parse_labelled(line, origin) for origin, line in read_examples(path, LINE_FORMAT, 2)]


def parse_labelled(line: str, origin: str) -> LabelledText:
    """Return the label and the text of a line.

    >>> parse_labelled("pos\\tA fine film.", "reviews.tsv:1")
    LabelledText(label='pos', text='A fine film.')
    """
    fields = split_columns(line, origin, LINE_FORMAT, range(2, len(line) + 2))
    label, text = fields[0].strip(), fields[-1].strip()
    if not label or not text:
        raise InputError(f"{origin}: expected {LINE_FORMAT}, found an empty {'text' if label else 'label'}")
    return LabelledText(label, text)


def find_split(folder: Path | str, name: str) -> Path | None:
    """Return the file of a split: `name` or `name.tsv` in the folder, plain or compressed; None if it is missing."""
    return find_packed(Path(folder) / name, ENDINGS)


def words(text: str) -> list[str]:
    """Return the words of a text in lower case, with punctuation marks as separate words.

    >>> words("It's great!<br /><br />10/10")
    ["it's", 'great', '!', '10', '/', '10']
    """
    return WORD.findall(BREAK.sub(" ", text).lower())


def label_names(examples: Iterable[LabelledText]) -> list[str]:
    """Return all labels in code-point order, which is the order of the classes.

    >>> label_names([LabelledText("pos", "good"), LabelledText("neg", "bad"), LabelledText("pos", "fine")])
    ['neg', 'pos']
    """
    return sorted({example.label for example in examples})
