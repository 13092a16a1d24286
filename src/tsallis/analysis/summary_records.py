"""Define the records of a report: heads, sentences and outputs of runs, and densities of classifiers."""

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
    """Sentence that shows a property of a head, with the weights of the head."""

    text: Text
    score: float
    weights: SparseWeights  # weights of one head


@dataclass(frozen=True, eq=False)
class HeadSummary(Record):
    """Results for one head; layers and heads count from 0, but from 1 in the title."""

    kind: str
    layer: int
    head: int
    alpha: float  # NaN if the alpha is unknown
    density: float
    histogram: Histogram  # histogram of the densities of sentences
    role: str | None
    tendency: str | None  # closest role of a head that has no role
    confidence: float | None
    title: str
    scores: dict[str, float | None]
    uniform: dict[str, float | None]  # scores of a head with equal weights
    counts: dict[str, int]
    increase: float | None  # increase of the loss without this head
    examples: tuple[HeadExample, ...]


@dataclass(frozen=True, eq=False)
class ContrastSummary(Record):
    """Two sentences with the same number of keys. A head is sparse on the first sentence and dense on the second."""

    kind: str
    layer: int
    head: int
    alpha: float
    sparse: HeadExample
    dense: HeadExample


@dataclass(frozen=True, eq=False)
class SentenceSummary(Record):
    """Sentence with the weights of all heads, the steps of its target, and the outputs of a search."""

    text: Text
    weights: tuple[SparseWeights, ...]  # weights of each layer, in order
    steps: tuple[TeacherForcedStep, ...] = ()
    answer: str | None = None  # best output of a search
    tree: BeamTree | None = None  # None if no search was run


@dataclass(frozen=True)
class SearchedAnswer(Record):
    """Best output of a search, and the reference."""

    index: int  # index of the sentence in its corpus, from 0
    source: tuple[str, ...]  # pieces of the source
    reference: str  # right answers, joined by " / "
    answer: str | None  # best output; None if the search found no output
    right: bool  # whether the output is a right answer
    prob: float | None
    certificate: str


@dataclass(frozen=True)
class CorpusSummary(Record):
    """The size of a corpus."""

    name: str
    sentences: int  # number of analysed sentences
    available: int
    src_symbols: int
    tgt_symbols: int
    unknown: int  # number of symbols that are missing from the vocabularies
    target_run: str | None = None  # run whose answers serve as targets; None if the targets are references


@dataclass(frozen=True, eq=False, kw_only=True)
class RunSummary(Record):
    """Content of a report on the heads and outputs of a run, or on the heads of any model."""

    name: str  # name of the run's folder
    task: str = ""  # task of the run, such as "translation"; empty for models without a run
    model: str  # class of the model; empty if only weights are known
    arguments: dict[str, Any] = field(default_factory=dict)  # arguments of the class
    parameters: int | None  # number of parameters; None if only weights are known
    step: int | None = None  # number of updates before the checkpoint; None if unknown
    metrics: dict[str, float] = field(default_factory=dict)  # scores of the checkpoint
    corpus: CorpusSummary  # the analysed sentences
    layers: tuple[AttentionLayer, ...]  # every attention module
    heads: tuple[HeadSummary, ...]  # summary of each head, in the order of the layers
    diversity: tuple[LayerDiversity, ...]  # diversity of each layer, in order
    outputs: OutputStatistics | None = None  # statistics with teacher forcing; None if only attention was analysed
    empty: EmptyRate | None = None  # rate of empty outputs among the searched sentences, or None
    training_pairs: int | None = None  # number of pairs in which pieces were counted for the role "rare"
    contrasts: tuple[ContrastSummary, ...]  # pairs of sentences, largest difference of density first
    values: ValueHistory | None = None  # None if the log has no validation
    alphas: HeadHistory | None = None  # None if the log has no alphas
    densities: HeadHistory | None = None  # None if the log has no densities
    importance: tuple[int, float] | None = None  # number of symbols, and loss with all heads
    sentences: tuple[SentenceSummary, ...]  # selected sentences, in the order of the corpus
    answers: tuple[SearchedAnswer, ...] = ()  # outputs for the searched sentences; empty without references
    example: int | None = None  # index of the sentence whose tree the overview shows


@dataclass(frozen=True, eq=False)
class ComparisonSummary(Record):
    """Names of two runs, and the words on which they agree and differ most, by kind of attention."""

    first: str  # name of the first run
    second: str  # name of the second run
    kinds: tuple[ModelContrast, ...]  # contrast for each kind of attention that both models have


@dataclass(frozen=True)
class DensityExample(Record):
    """Attention of a model to one example.

    Args:
        index: Index of the example in its corpus, from 0.
        title: Text of the document, or the question about the image.
        words: Words of the document; empty for an image.
        gold: Correct answer; empty if it is unknown.
        answer: Answer of the model.
        prob: Probability of the model's answer.
        weights: Discrete weights of the words, or of the image's regions row by row; empty without discrete weights.
        grid: Numbers of rows and columns of the regions; None for words.
        masses: Mass of the density in each word or region; empty without a density.
        density: Density of continuous attention; None for discrete attention.
        image: PNG as a data URI, at most 256 pixels wide and high; None for words and for features.
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
    """Attention of a classifier over a corpus: positions and sizes of its densities, and shares of zeros.

    Args:
        name: Name of the run's folder.
        task: Name of the task, such as "classification".
        model: Class of the model.
        arguments: Arguments of the class.
        corpus: Name of the corpus.
        examples: Number of examples that the model read.
        accuracy: Share of correct answers among examples with a known answer; None if no answer is known.
        zeros: Mean share of words or regions without weight, from discrete weights if the model has them.
        zero_masses: Mean share of words or regions without mass of the density; None without a density.
        size: Mean share of the unit interval or square that supports cover; None without a density.
        centres: Histogram of the densities' means for each axis, from 0 to 1.
        sizes: Histogram of the shares that supports cover; None without a density.
        shown: Examples that the report shows.
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
