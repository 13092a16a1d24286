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
    """The symbols of sources and targets, and images, where there are any.

    Symbols are a :class:`~tsallis.toolkit.data.vocabulary.Vocabulary` or
    :class:`~tsallis.toolkit.data.subwords.Subwords`.

    Sources of questions about images begin with the image's number in the store.
    """

    src: Any
    tgt: Any
    images: ImageStore | None = None


@dataclass(frozen=True)
class Lines:
    """Lines of input as numbers, and the outputs that are right where they are known."""

    corpus: Corpus
    references: list[str]
    titles: list[str]  # what a line asks for, in few words
    numbers: list[int]  # line number of each row, from 0; lines without symbols have no row
    count: int  # of all lines
    languages: list[str] | None = None  # of each row, where lines have one
    ignored: Ignored = field(default_factory=Ignored)

    def select(self, rows: Sequence[int]) -> Lines:
        """Return some rows; there are as many lines as before."""

        def chosen(column: Any) -> Any:
            return None if column is None else [column[row] for row in rows]

        corpus = Corpus(chosen(self.corpus.src), chosen(self.corpus.tgt), self.corpus.counts)
        names = ("references", "titles", "numbers", "languages")
        return replace(self, corpus=corpus, **{name: chosen(getattr(self, name)) for name in names})


@dataclass(frozen=True)
class Data:
    """The training data of a configuration as numbers."""

    train: Corpus
    dev: Lines
    vocabularies: Vocabularies


class ModelSection(Section):
    """The section `model` of a configuration: settings of a class of :mod:`tsallis.models.registry`.

    Its key `architecture` is the class's name there.
    """

    @model_validator(mode="after")
    def _check_heads(self) -> ModelSection:
        d_model, heads = getattr(self, "d_model", 0), getattr(self, "heads", 1)
        if d_model % heads:
            raise ValueError(f"d_model must be a multiple of heads, found d_model {d_model} and heads {heads}")
        return self

    def check(self) -> None:
        """Refuse settings that don't go together, before any data is read.

        Raises:
            InputError: such settings.
        """

    def arguments(self, data: Data, settings: Settings, source: Run | None = None) -> dict[str, Any]:
        """Return the arguments of the class for some data, and for the run that it starts from if there is one.

        Raises:
            InputError: settings that don't go with the data.
        """
        return {**self.sizes(data), **self.model_dump(exclude={"architecture"})}

    def sizes(self, data: Data) -> dict[str, int]:
        """Return the arguments that say how many symbols there are."""
        return {"src_vocab": len(data.vocabularies.src), "tgt_vocab": len(data.vocabularies.tgt)}


class Attention(NamedTuple):
    """Attention to the source in a batch."""

    weights: Tensor  # [batch, target, source]: of discrete attention weights, of continuous attention masses
    density: Density | None = None  # of batch shape [batch, ..., target] or [batch]
    grid: Sequence[int] | None = None  # height and width, where the source is an image
