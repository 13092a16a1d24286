"""Summaries of runs: everything that a report shows of a trained model on a corpus, as plain records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tsallis.analysis.alphas import LOG, HeadHistory, alpha_history, density_history
from tsallis.analysis.cards import describe_heads
from tsallis.analysis.density import Density, HeadDensity
from tsallis.analysis.diversity import Diversity, LayerDiversity
from tsallis.analysis.head_roles import HeadRole, HeadRoles, Roles
from tsallis.analysis.importance import HeadImportance, head_importance
from tsallis.analysis.outputs import OutputStatistics, TeacherForcedStep, output_statistics, teacher_forced_supports
from tsallis.analysis.record import AttentionReader, Recording, read_model, record
from tsallis.analysis.statistics import collect
from tsallis.analysis.tables import Histogram, Record
from tsallis.analysis.tree import BeamTree, beam_tree
from tsallis.analysis.weights import AttentionLayer, Sentence, SparseWeights, Text
from tsallis.data.batching import Batch
from tsallis.data.corpus import Corpus
from tsallis.errors import InputError
from tsallis.evaluation.metrics import device_of
from tsallis.models import TransformerSeq2Seq
from tsallis.search import beam_search
from tsallis.search.step import at_least_one
from tsallis.special_symbols import UNK
from tsallis.training.run_folder import MODEL, Run
from tsallis.training.schema import ModelRecord, read_record

BATCH = 32  # sentences that are recorded together
SEARCHED = 8  # sentences that are translated together
WORDS = 12  # of a forced step, at most
Advance = Callable[[str, int, int], None]


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
    alpha: float
    density: float
    histogram: Histogram  # of the densities of sentences
    role: str | None
    confidence: float | None
    title: str
    scores: dict[str, float | None]
    counts: dict[str, int]
    increase: float | None  # of the loss without it
    examples: tuple[HeadExample, ...]


@dataclass(frozen=True, eq=False)
class SentenceSummary(Record):
    """A sentence with all weights, each step of its reference, and the outputs that a search found."""

    text: Text
    weights: tuple[SparseWeights, ...]  # in the order of the layers
    steps: tuple[TeacherForcedStep, ...]
    answer: str | None  # the best output
    tree: BeamTree


@dataclass(frozen=True)
class CorpusSummary(Record):
    """The size of a corpus."""

    name: str
    sentences: int  # that were analysed
    available: int
    src_symbols: int
    tgt_symbols: int
    unknown: int  # symbols of both sides that the vocabularies lack


@dataclass(frozen=True, eq=False)
class RunSummary(Record):
    """All that a report shows of the heads and outputs of one run."""

    name: str  # of its folder
    task: str  # its name, such as "translation"
    model: str  # its class
    arguments: dict[str, Any]  # of that class
    parameters: int  # how many
    step: int  # updates before the checkpoint
    metrics: dict[str, float]  # of the checkpoint
    corpus: CorpusSummary  # what was analysed
    layers: tuple[AttentionLayer, ...]  # every attention module
    heads: tuple[HeadSummary, ...]  # in the order of the layers
    diversity: tuple[LayerDiversity, ...]  # in the order of the layers
    outputs: OutputStatistics  # with teacher forcing
    alphas: HeadHistory | None  # None where the log has none
    densities: HeadHistory | None  # None where the log has none
    importance: tuple[int, float] | None  # symbols, and the loss with all heads
    sentences: tuple[SentenceSummary, ...]  # a selection, in the corpus's order


@dataclass(frozen=True)
class Options:
    """Sizes of a summary: how much of a corpus it takes in.

    Args:
        limit: sentences that are analysed, the first ones.
        sentences: how many of them the summary holds with all weights.
        importance: sentences on which the loss without each head is measured; 0 leaves it out.
        examples: sentences that show the role of a head.
        beam_size: of the search for outputs.

    Raises:
        ValueError: a number below 1, of `importance` below 0.

    Example:
        >>> Options(limit=200).sentences
        30
    """

    limit: int = 1000
    sentences: int = 30
    importance: int = 0
    examples: int = 3
    beam_size: int = 5

    def __post_init__(self) -> None:
        at_least_one(limit=self.limit, sentences=self.sentences, examples=self.examples, beam_size=self.beam_size)
        if self.importance < 0:
            raise ValueError(f"importance must be at least 0, got {self.importance}")


def _ignore(stage: str, done: int, total: int) -> None:
    pass


def summarize(
    run: Run,
    corpus: Corpus,
    name: str,
    options: Options | None = None,
    rows: Sequence[int] | None = None,
    advance: Advance = _ignore,
) -> RunSummary:
    """Compute what the heads and outputs of a run do on a corpus with targets.

    Args:
        run: of an encoder-decoder with discrete attention.
        corpus: as the run's own vocabularies number it.
        name: of the corpus.
        options: how much of it is read.
        rows: of the sentences that it holds with all weights; by default those that show most heads' roles, and the
            first.
        advance: called with the work at hand, how much of it is done, and how much there is.

    Returns:
        What a report shows of the run.

    Raises:
        InputError: a run of another kind, or an empty corpus.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from tsallis.data.vocabulary import Vocabulary
        >>> from tsallis.training.run_folder import build_model
        >>> folder, symbols = Path(tempfile.mkdtemp()), Vocabulary(["▁a", "▁b"])
        >>> sizes = {"src_vocab": 6, "tgt_vocab": 6, "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}
        >>> description = {"class": "transformer", "arguments": sizes}
        >>> _ = (folder / "model.json").write_text(json.dumps(description))
        >>> run = Run(folder, build_model(description), symbols, symbols, {"task": "translation"}, {})
        >>> summary = summarize(run, Corpus([[4, 5]], [[5]]), "a sentence")
        >>> len(summary.heads), summary.outputs.steps
        (6, 2)
    """
    options = options or Options()
    count = min(options.limit, len(corpus))
    if count == 0:
        raise InputError(f"{name}: there are no sentences to analyse")
    reader = _reader(run)
    batches = corpus.batches(BATCH, count)
    roles, densities, diversities = collect(
        Recording(reader.layers, _Counted(record(reader, batches), "attention", count, advance)),
        Roles(reader.layers, examples=options.examples),
        Density(reader.layers),
        Diversity(reader.layers),
    )
    statistics = output_statistics(run.model, _Counted(batches, "outputs", len(batches), advance))
    importance = _importance(run, reader, corpus, min(options.importance, count), advance)
    chosen = _choose(roles, count, options.sentences) if rows is None else rows
    model = read_record(run.folder / MODEL, ModelRecord)
    return RunSummary(
        name=run.folder.name or str(run.folder),
        task=run.task.get("task", "inflection"),
        model=model.name,
        arguments=model.arguments,
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        step=int(run.facts.get("step", 0)),
        metrics={key: value for key, value in run.facts.get("metrics", {}).items() if isinstance(value, int | float)},
        corpus=_describe_corpus(corpus, name, count),
        layers=reader.layers,
        heads=_heads(reader, corpus, roles, densities.heads, importance),
        diversity=diversities.layers,
        outputs=statistics,
        alphas=_history(run, alpha_history),
        densities=_history(run, density_history),
        importance=(importance.symbols, importance.loss) if importance else None,
        sentences=tuple(_sentences(run, reader, corpus, chosen, options, advance)),
    )


class _Counted:
    """An iterable that says how far it is."""

    def __init__(self, items: Iterable[Any], stage: str, total: int, advance: Advance) -> None:
        self.items, self.stage, self.total, self.advance, self.done = items, stage, total, advance, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield item
            self.done += 1
            self.advance(self.stage, self.done, self.total)


def _reader(run: Run) -> AttentionReader:
    try:
        return read_model(run.model, run.src_vocab, run.tgt_vocab)
    except ValueError as error:
        kind = "continuous attention" if hasattr(run.model, "densities") else f"the task {run.task.get('task')}"
        raise InputError(
            f"{run.folder}: a run with {kind} can't be analysed, only encoder-decoders with discrete attention "
            "(see `tsallis look`)"
        ) from error


def _describe_corpus(corpus: Corpus, name: str, rows: int) -> CorpusSummary:
    sides = [[number for row in range(rows) for number in side[row]] for side in (corpus.src, corpus.tgt)]
    unknown = sum(int(number) == UNK for side in sides for number in side)
    return CorpusSummary(name, rows, len(corpus), len(sides[0]), len(sides[1]), unknown)


def _importance(
    run: Run, reader: AttentionReader, corpus: Corpus, rows: int, advance: Advance
) -> HeadImportance | None:
    if rows == 0 or not isinstance(run.model, TransformerSeq2Seq):
        return None
    batches: Sequence[Batch] = list(corpus.batches(BATCH, rows))
    total = (1 + sum(layer.heads for layer in reader.layers)) * len(batches)
    return head_importance(run.model, _Counted(batches, "importance", total, advance))


def _history(run: Run, read: Callable[..., HeadHistory]) -> HeadHistory | None:
    if not (run.folder / LOG).is_file():
        return None
    try:
        return read(run.folder)
    except InputError:  # a log without such values
        return None


def _heads(
    reader: AttentionReader,
    corpus: Corpus,
    roles: HeadRoles,
    densities: Sequence[HeadDensity],
    importance: HeadImportance | None,
) -> tuple[HeadSummary, ...]:
    cards = describe_heads(roles.heads, densities)
    increases = {(h.kind, h.layer, h.head): h.increase for h in importance.heads} if importance else {}
    weights = _example_weights(reader, corpus, roles.heads)
    heads = []
    for card, role, density in zip(cards, roles.heads, densities, strict=True):
        key = (card.kind, card.layer, card.head)
        examples = tuple(
            HeadExample(example.text, example.score, weights[key, example.text.index]) for example in card.examples
        )
        heads.append(
            HeadSummary(
                *key,
                alpha=card.alpha,
                density=card.density,
                histogram=density.histogram,
                role=card.role,
                confidence=card.confidence,
                title=card.title,
                scores=role.scores,
                counts=role.counts,
                increase=increases.get(key),
                examples=examples,
            )
        )
    return tuple(heads)


HeadKey = tuple[str, int, int]


def _example_weights(
    reader: AttentionReader, corpus: Corpus, heads: Sequence[HeadRole]
) -> dict[tuple[HeadKey, int], SparseWeights]:
    """Record the examples of all heads again, and return by head and sentence the weights of that head alone."""
    keys_by_sentence: dict[int, list[HeadKey]] = {}
    for head in heads:
        for example in head.examples:
            keys_by_sentence.setdefault(example.text.index, []).append((head.kind, head.layer, head.head))
    numbers = {(layer.kind, layer.layer): number for number, layer in enumerate(reader.layers)}
    weights = {}
    for sentence in _record_rows(reader, corpus, sorted(keys_by_sentence)):
        for key in keys_by_sentence[sentence.text.index]:
            weights[key, sentence.text.index] = sentence.weights[numbers[key[:2]]].head(key[2])
    return weights


def _record_rows(reader: AttentionReader, corpus: Corpus, rows: Sequence[int]) -> Iterator[Sentence]:
    """Yield the sentences of some rows, in their order."""
    batches = [corpus.batch(rows[first : first + BATCH]) for first in range(0, len(rows), BATCH)]
    return iter(record(reader, batches))


def _choose(roles: HeadRoles, rows: int, count: int) -> list[int]:
    """Choose sentences: half of them those that most heads have as an example, then the first of the corpus."""
    cited = Counter(example.text.index for head in roles.heads for example in head.examples)
    chosen = {index for index, _ in cited.most_common(count // 2)}
    for index in range(rows):
        if len(chosen) >= count:
            break
        chosen.add(index)
    return sorted(chosen)


def _sentences(
    run: Run, reader: AttentionReader, corpus: Corpus, rows: Sequence[int], options: Options, advance: Advance
) -> Iterator[SentenceSummary]:
    size, device = options.beam_size, device_of(run.model)
    for first in range(0, len(rows), SEARCHED):
        part = rows[first : first + SEARCHED]
        batch = corpus.batch(part)
        steps = dict(teacher_forced_supports(run.model, [batch], run.tgt_vocab, WORDS))
        sources = batch.to(device)
        results = beam_search(run.model, sources.src, sources.src_lengths, beam_size=size, n_best=size)
        for row, sentence, result in zip(part, _record_rows(reader, corpus, part), results, strict=True):
            yield SentenceSummary(
                text=sentence.text,
                weights=sentence.weights,
                steps=steps[row],
                answer=run.tgt_vocab.text(result.best.tokens) if result.best else None,
                tree=beam_tree(run.model, corpus.batch([row]).src.to(device), result, run.tgt_vocab),
            )
        advance("sentences", first + len(part), len(rows))
