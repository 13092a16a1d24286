"""The records of a report: heads, sentences, contrasts and outputs of a run, and the densities of classifiers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tsallis.analysis.contrasts import ModelContrast
from tsallis.analysis.density_shapes import DrawnDensity
from tsallis.analysis.diversity import LayerDiversity
from tsallis.analysis.histories import HeadHistory, ValueHistory
from tsallis.analysis.outputs import EmptyRate, OutputStatistics, TeacherForcedStep
from tsallis.analysis.tables import Histogram, Record
from tsallis.analysis.tree import BeamTree
from tsallis.analysis.weights import AttentionLayer, SparseWeights, Text


@dataclass(frozen=True, eq=False)
class HeadExample(Record):
    """A sentence that shows the role of a head, with that head's weights."""

    text: Text
    score: float
    weights: SparseWeights  # of one head


@dataclass(frozen=True, eq=False)
class HeadSummary(Record):
    """All that is known of one head; layers and heads count from 0, in the title from 1."""

    kind: str
    layer: int
    head: int
    alpha: float  # NaN where it is not known
    density: float
    histogram: Histogram  # of the densities of sentences
    role: str | None
    tendency: str | None  # the role that a head without one comes nearest to
    confidence: float | None
    title: str
    scores: dict[str, float | None]
    uniform: dict[str, float | None]  # the scores of equal weights
    counts: dict[str, int]
    increase: float | None  # of the loss without it
    examples: tuple[HeadExample, ...]


@dataclass(frozen=True, eq=False)
class ContrastSummary(Record):
    """Two sentences of as many keys on which one head is sparse and dense, with its weights on both."""

    kind: str
    layer: int
    head: int
    alpha: float
    sparse: HeadExample
    dense: HeadExample


@dataclass(frozen=True, eq=False)
class SentenceSummary(Record):
    """A sentence with all weights, each step of its target, and the outputs that a search found."""

    text: Text
    weights: tuple[SparseWeights, ...]  # in the order of the layers
    steps: tuple[TeacherForcedStep, ...] = ()
    answer: str | None = None  # the best output
    tree: BeamTree | None = None  # None where nothing was searched


@dataclass(frozen=True)
class SearchedAnswer(Record):
    """The best output of a search beside the reference."""

    index: int  # of the sentence in its corpus, from 0
    source: tuple[str, ...]  # pieces
    reference: str
    answer: str | None  # None where the search found nothing
    prob: float | None
    certificate: str


@dataclass(frozen=True)
class CorpusSummary(Record):
    """The size of a corpus."""

    name: str
    sentences: int  # that were analysed
    available: int
    src_symbols: int
    tgt_symbols: int
    unknown: int  # symbols of both sides that the vocabularies lack
    target_run: str | None = None  # name of the run whose answers the targets are; None where they are references


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSummary(Record):
    """Content of a report on the heads and outputs of a run, or on the heads of any model."""

    name: str  # of its folder
    task: str = ""  # its name, such as "translation"; empty for other models
    model: str  # its class; empty where there are weights alone
    arguments: dict[str, Any] = field(default_factory=dict)  # of that class
    parameters: int | None  # how many; None where there are weights alone
    step: int | None = None  # updates before the checkpoint; None where it is not known
    metrics: dict[str, float] = field(default_factory=dict)  # of the checkpoint
    corpus: CorpusSummary  # the analysed sentences
    layers: tuple[AttentionLayer, ...]  # every attention module
    heads: tuple[HeadSummary, ...]  # in the order of the layers
    diversity: tuple[LayerDiversity, ...]  # in the order of the layers
    outputs: OutputStatistics | None = None  # with teacher forcing; None where only attention was analysed
    empty: EmptyRate | None = None  # statistics of the searched sentences, or None
    training_pairs: int | None = None  # whose pieces were counted for the score of rare ones, where at hand
    contrasts: tuple[ContrastSummary, ...]  # the largest differences of density first
    values: ValueHistory | None = None  # None where the log has no validation
    alphas: HeadHistory | None = None  # None where the log has none
    densities: HeadHistory | None = None  # None where the log has none
    importance: tuple[int, float] | None = None  # symbols, and the loss with all heads
    sentences: tuple[SentenceSummary, ...]  # a selection, in the corpus's order
    answers: tuple[SearchedAnswer, ...] = ()  # to the searched sentences; none where references are missing
    example: int | None = None  # index of the sentence whose tree the overview shows


@dataclass(frozen=True, eq=False)
class ComparisonSummary(Record):
    """Two runs by their names, and the words about which they agree and differ most, by kind of attention."""

    first: str  # name of a run
    second: str  # name of another one
    kinds: tuple[ModelContrast, ...]  # one for each kind of attention that both models have


@dataclass(frozen=True)
class DensityExample(Record):
    """The attention of a model to one example.

    Args:
        index: of the example in its corpus, from 0.
        title: its words as they are read, or the question about an image.
        words: of a document; none for an image.
        gold: the right answer, empty where it isn't known.
        answer: the model's.
        prob: its probability.
        weights: the discrete weights of the words, or of the regions of an image, row by row; none without any.
        grid: rows and columns of the regions; None for words.
        masses: Mass of the density in each word or region; empty without a density.
        density: None for discrete attention.
        image: a PNG as a data URI, at most 256 pixels wide and high; None for words and for features.
    """

    index: int
    title: str
    words: tuple[str, ...]
    gold: str
    answer: str
    prob: float
    weights: tuple[float, ...]
    grid: tuple[int, int] | None
    masses: tuple[float, ...]
    density: DrawnDensity | None
    image: str | None


@dataclass(frozen=True)
class DensitySummary(Record):
    """The attention of a run of labels over a corpus: where densities lie, how wide they are, how much is left out.

    Args:
        name: of the run's folder.
        task: its name, such as "classification".
        model: its class.
        arguments: of that class.
        corpus: its name.
        examples: how many were read.
        accuracy: share of answers that are right, among those whose right answer is known; None where none is.
        zeros: mean share of words or regions without any weight: discrete ones where there are any.
        zero_masses: the same of the density's masses; None without a density.
        size: mean part of the unit interval or square that supports cover; None without a density.
        centres: histograms of the densities' means along each axis, from 0 to 1.
        sizes: histogram of the parts that supports cover; None without a density.
        shown: some examples.
    """

    name: str
    task: str
    model: str
    arguments: dict[str, Any]
    corpus: str
    examples: int
    accuracy: float | None
    zeros: float | None
    zero_masses: float | None
    size: float | None
    centres: tuple[Histogram, ...]
    sizes: Histogram | None
    shown: tuple[DensityExample, ...]
