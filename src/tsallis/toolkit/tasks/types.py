"""Data types that tasks return. This module imports no other module of `tasks`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from pydantic import model_validator
from torch import Tensor

from tsallis.continuous import Density
from tsallis.toolkit.config import Section, Settings
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.image_store import ImageStore
from tsallis.toolkit.data.io import Ignored
from tsallis.toolkit.training.run_folder import Run

SPLITS = ("train", "dev", "test")


@dataclass(frozen=True)
class Vocabularies:
    """Vocabularies of sources and targets, and the images of questions.

    Symbols are a :class:`~tsallis.toolkit.data.vocabulary.Vocabulary` or
    :class:`~tsallis.toolkit.data.subwords.Subwords`.

    The source of a question about an image begins with the image's number in the store.
    """

    src: Any
    tgt: Any
    images: ImageStore | None = None


@dataclass(frozen=True)
class Lines:
    """Encoded lines of input, with their reference outputs if known."""

    corpus: Corpus
    references: list[str]
    titles: list[str]  # readable description of each row's input
    numbers: list[int]  # line number of each row, from 0; lines without symbols have no row
    count: int  # number of lines, including those without a row
    languages: list[str] | None = None  # language of each row, if lines have one
    ignored: Ignored = field(default_factory=Ignored)

    def select(self, rows: Sequence[int]) -> Lines:
        """Return these lines with only some of the rows; `count` stays the same."""

        def select_rows(column: Any) -> Any:
            return None if column is None else [column[row] for row in rows]

        corpus = Corpus(select_rows(self.corpus.src), select_rows(self.corpus.tgt), self.corpus.counts)
        names = ("references", "titles", "numbers", "languages")
        return replace(self, corpus=corpus, **{name: select_rows(getattr(self, name)) for name in names})


@dataclass(frozen=True)
class Data:
    """Encoded training and development data of a configuration."""

    train: Corpus
    dev: Lines
    vocabularies: Vocabularies
    # If the model copies, two values for the development data: the target vocabulary, and the target symbol of each
    # unknown source symbol in these data.
    extended_vocabulary: tuple[Any, list[int]] | None = None


FROM_DATA = {"copy", "features"}  # settings whose model arguments are symbols of the data, see `ModelSection.sizes`


class ModelSection(Section):
    """Section `model` of a configuration: the settings of a model class.

    The key `architecture` is the name of the class in :mod:`tsallis.models.registry`.
    """

    @model_validator(mode="after")
    def _check_heads(self) -> ModelSection:
        d_model, heads = getattr(self, "d_model", 0), getattr(self, "heads", 1)
        if d_model % heads:
            raise ValueError(f"d_model must be a multiple of heads, found d_model {d_model} and heads {heads}")
        return self

    def check(self) -> None:
        """Raise if settings contradict each other. This check runs before any data is read.

        Raises:
            InputError: If settings contradict each other.
        """

    def arguments(self, data: Data, settings: Settings, source: Run | None = None) -> dict[str, Any]:
        """Return the arguments of the model class.

        Args:
            data: Data of the run, which determines sizes of vocabularies.
            settings: Settings of the training.
            source: Run whose parameters initialise the model, if there is one.

        Raises:
            InputError: If settings do not match the data.
        """
        return {**self.model_dump(exclude={"architecture", *FROM_DATA}), **self.sizes(data)}

    def adapt(self, task: Any, data: Data) -> Data:
        """Return the data with the vocabularies that the model needs."""
        return data

    def sizes(self, data: Data) -> dict[str, Any]:
        """Return the model arguments that depend on the vocabularies, such as their sizes."""
        return {"src_vocab": len(data.vocabularies.src), "tgt_vocab": len(data.vocabularies.tgt)}


class Attention(NamedTuple):
    """Attention to the source in a batch."""

    weights: Tensor  # [batch, target, source] Weights of discrete attention, or masses of continuous attention
    density: Density | None = None  # density with batch shape [batch, ..., target] or [batch]
    grid: Sequence[int] | None = None  # height and width, if the source is an image
