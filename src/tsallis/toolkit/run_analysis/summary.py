"""Summaries of runs: compute the content of a report about trained models on a corpus."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tsallis.analysis.attention_summary import head_examples, summarize_contrasts, summarize_heads
from tsallis.analysis.contrasts import Comparison
from tsallis.analysis.importance import HeadImportance, head_importance
from tsallis.analysis.outputs import EmptyOutput, EmptyRate, Outputs, TeacherForcedStep, describe_steps
from tsallis.analysis.passes import AttentionPass, HeadKey, ReportWeights
from tsallis.analysis.record import AttentionReader, RecordedBatch, Symbols, read_model
from tsallis.analysis.summary_records import (
    ComparisonSummary,
    CorpusSummary,
    RunSummary,
    SearchedAnswer,
    SentenceSummary,
)
from tsallis.analysis.tree import beam_tree
from tsallis.analysis.words import PieceCounts
from tsallis.errors import IgnoredInputWarning, InputError
from tsallis.models import LanguageModel, TransformerSeq2Seq
from tsallis.models.batch import Batch
from tsallis.models.protocol import device_of
from tsallis.models.spellings import ambiguous_text
from tsallis.search import Result, beam_search
from tsallis.symbols import UNK
from tsallis.toolkit.analysis_options import Options
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.data.io import distinct_names
from tsallis.toolkit.data.ragged import Rows
from tsallis.toolkit.evaluation.empty_output import compare_empty, empty_log_probs
from tsallis.toolkit.run_analysis.logs import NoValuesError, alpha_history, density_history, value_history
from tsallis.toolkit.training.file_names import LOG
from tsallis.toolkit.training.run_folder import Run, describe_run

BATCH = 32  # number of sentences in a batch
WORDS = 12  # maximum number of words listed per teacher-forced step
SEARCH_BATCH = 8  # number of sentences in a batch of the search
Advance = Callable[[int, str, int, int], None]  # arguments: number of the run, current stage, amount done, total


@dataclass(frozen=True)
class TrainingCounts:
    """Number of pairs and counts of pieces in a run's training data."""

    pairs: int  # number of pairs of source and target
    pieces: PieceCounts  # counts of pieces by side, as `count_pieces` returns them


def count_pieces(corpus: Corpus, src_vocab: Symbols, tgt_vocab: Symbols) -> PieceCounts:
    """Count each piece in the sources and targets of a corpus, for the scores of rare pieces.

    Args:
        corpus: Encoded sources and targets.
        src_vocab, tgt_vocab: Vocabularies of the sources and the targets.

    Returns:
        Counts by piece for the sides "source" and "target".

    Example:
        >>> from tsallis.toolkit.data.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary(["▁a", "▁b"])
        >>> count_pieces(Corpus([[4, 5], [4]], [[5], [5]]), vocabulary, vocabulary)
        {'source': {'▁a': 2, '▁b': 1}, 'target': {'▁b': 2}}
    """
    return {"source": _counts(corpus.src, src_vocab), "target": _counts(corpus.tgt, tgt_vocab)}


def _counts(rows: Rows, vocab: Symbols) -> dict[str, int]:
    numbers = Counter(int(number) for row in rows for number in row)
    return {vocab.name(number): count for number, count in numbers.items()}


@dataclass(frozen=True)
class RunInput:
    """Run, and the corpus for its summary.

    Args:
        run: Run of an encoder-decoder with discrete attention, or of a language model.
        corpus: Corpus with targets, encoded by the run's vocabularies.
        name: Name of the corpus.
        counts: Counts of the training data, for the scores of rare pieces; None if unavailable.
        target_run: Name of the run whose outputs are the targets; None if they are references.
        answers: Right answers of each row; None: the decoded targets.
    """

    run: Run
    corpus: Corpus
    name: str
    counts: TrainingCounts | None = None
    target_run: str | None = None
    answers: Sequence[Sequence[str]] | None = None


def summarize(run: Run, corpus: Corpus, name: str, options: Options | None = None) -> RunSummary:
    """Summarise the heads and outputs of a run on a corpus with targets.

    Args:
        run: Run of an encoder-decoder with discrete attention, or of a language model.
        corpus: Corpus encoded by the run's vocabularies.
        name: Name of the corpus.
        options: Options with the numbers of sentences to read and to show.

    Returns:
        The summary for a report.

    Raises:
        InputError: If the run has another kind of model, or the corpus is empty.

    Example:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> from tsallis.toolkit.data.vocabulary import Vocabulary
        >>> from tsallis.toolkit.training.run_folder import build_model
        >>> folder, symbols = Path(tempfile.mkdtemp()), Vocabulary(["▁a", "▁b"])
        >>> sizes = {"src_vocab": 6, "tgt_vocab": 6, "d_model": 8, "heads": 2, "layers": 1, "d_ff": 8}
        >>> description = {"class": "transformer", "arguments": sizes}
        >>> _ = (folder / "model.json").write_text(json.dumps(description))
        >>> run = Run(folder, build_model(description), symbols, symbols, {"task": "translation"}, {})
        >>> summary = summarize(run, Corpus([[4, 5]], [[5]]), "a sentence")
        >>> len(summary.heads), summary.outputs.steps
        (6, 2)
    """
    ((summary,), _) = summarize_runs([RunInput(run, corpus, name)], options)
    return summary


def summarize_runs(
    inputs: Sequence[RunInput], options: Options | None = None, advance: Advance = lambda run, stage, done, total: None
) -> tuple[list[RunSummary], list[ComparisonSummary]]:
    """Summarise several runs on the same sentences, and compare the first run with the other runs.

    All models read the corpus batch by batch, in turn. The first run is compared with each other run that splits the
    sentences into the same pieces and has a kind of attention in common.

    Args:
        inputs: Runs with the same sentences.
        options: Options with the numbers of sentences to read and to show.
        advance: Function called with the number of a run, the current stage, the amount done, and the total.

    Returns:
        A summary of each run, all with the same sentences, and the comparisons.

    Raises:
        InputError: If a run has another kind of model, a corpus is empty, or corpora have different lengths.

    Example:
        >>> summaries, comparisons = summarize_runs([RunInput(one, dev, "dev"), RunInput(other, dev, "dev")])
        ... # doctest: +SKIP
        >>> comparisons[0].kinds[0].differ[0].piece  # doctest: +SKIP
        '▁lamp'
    """
    options = options or Options()
    first = inputs[0]
    count = min(options.limit, len(first.corpus))
    if count == 0:
        raise InputError(f"{first.name}: no sentences to analyse: the input is empty")
    for other in inputs[1:]:
        if len(other.corpus) != len(first.corpus):
            counts = f"expected {len(first.corpus)} sentences of {first.name}, as in {first.run.folder}"
            raise InputError(f"{other.run.folder}: {counts}, found {len(other.corpus)}")
    passes = [
        CorpusPass(x.run, x.corpus, count, options.examples, x.counts.pieces if x.counts else None) for x in inputs
    ]
    contrasts = _read_together(passes, inputs, count, advance)
    words = [word.sentence for contrast in contrasts for kind in contrast.kinds for word in kind.differ]
    rows, fewer_rows = (passes[0].choose(options.sentences - num_omitted, words) for num_omitted in (0, 1))
    searched = sorted({*rows, *fewer_rows, *range(min(options.searched, count))})
    results = [
        _search(run_input.run, run_input.corpus, searched, options, lambda *args, number=number: advance(number, *args))
        for number, run_input in enumerate(inputs)
    ]
    example = _choose_example(results[0])
    if example is not None and example not in rows:
        rows = sorted([*fewer_rows, example])
    summaries = [
        _summary(
            run_input, corpus_pass, options, rows, count, by_row, lambda *args, number=number: advance(number, *args)
        )
        for number, (run_input, corpus_pass, by_row) in enumerate(zip(inputs, passes, results, strict=True))
    ]
    names = distinct_names([run_input.run.folder for run_input in inputs])
    named = zip(summaries, names, strict=True)
    return [replace(summary, name=name, example=example) for summary, name in named], contrasts


def _read_together(
    passes: Sequence[CorpusPass], inputs: Sequence[RunInput], count: int, advance: Advance
) -> list[ComparisonSummary]:
    """Run all passes together, batch by batch, and compare the first run with each compatible run."""
    comparisons: dict[int, Comparison] = {}
    for number, other in enumerate(passes[1:], 1):
        kinds = [{layer.kind for layer in x.reader.layers} for x in (passes[0], other)]
        if kinds[0] & kinds[1] and _same_texts(inputs[0], inputs[number], count):
            comparisons[number] = Comparison(passes[0].reader.layers, other.reader.layers)
    iterators, done = [iter(corpus_pass) for corpus_pass in passes], 0
    while done < count:
        batches = []
        for number, iterator in enumerate(iterators):
            batches.append(next(iterator))
            advance(number, "attention and outputs", done + len(batches[0]), count)
        done += len(batches[0])
        for number, comparison in comparisons.items():
            for pair in zip(batches[0], batches[number], strict=True):
                comparison.update(*pair)
    names = distinct_names([run_input.run.folder for run_input in inputs])
    contrasts = []
    for number, comparison in comparisons.items():
        with contextlib.suppress(InputError):  # no query has two keys
            contrasts.append(ComparisonSummary(names[0], names[number], comparison.result()))
    return contrasts


def _same_texts(one: RunInput, other: RunInput, count: int) -> bool:
    """Return whether two runs split the sentences into the same pieces."""
    for side in ("src", "tgt"):
        vocabularies = [getattr(x.run, f"{side}_vocab") for x in (one, other)]
        rows = [getattr(x.corpus, side) for x in (one, other)]
        for row in range(count):
            pieces = [[vocab.name(int(i)) for i in part[row]] for vocab, part in zip(vocabularies, rows, strict=True)]
            if pieces[0] != pieces[1]:
                return False
    return True


def _summary(
    run_input: RunInput,
    corpus_pass: CorpusPass,
    options: Options,
    rows: Sequence[int],
    count: int,
    results: dict[int, Result],
    advance: Callable[..., None],
) -> RunSummary:
    run, corpus, reader = run_input.run, run_input.corpus, corpus_pass.reader
    searched_results = {row: result for row, result in results.items() if row < options.searched}
    roles, densities = corpus_pass.roles.result(), corpus_pass.densities.result()
    diversities, contrasts = corpus_pass.diversity.result(), corpus_pass.contrasts.result()
    importance = _importance(run, reader, corpus, min(options.importance, count), advance)
    shown_sentences = ShownSentences(corpus_pass, rows, head_examples(roles, contrasts))
    return RunSummary(
        **describe_run(run),
        parameters=sum(parameter.numel() for parameter in run.model.parameters()),
        step=int(run.facts.get("step", 0)),
        metrics={key: value for key, value in run.facts.get("metrics", {}).items() if isinstance(value, int | float)},
        corpus=_describe_corpus(run_input, count),
        layers=reader.layers,
        heads=summarize_heads(roles, densities, shown_sentences, importance),
        diversity=diversities.layers,
        outputs=corpus_pass.outputs.result(),
        empty=_searched_empty_rate(run, corpus, searched_results),
        training_pairs=run_input.counts.pairs if run_input.counts else None,
        contrasts=summarize_contrasts(contrasts, shown_sentences),
        values=_history(run, value_history),
        alphas=_history(run, alpha_history),
        densities=_history(run, density_history),
        importance=(importance.symbols, importance.loss) if importance else None,
        sentences=tuple(_sentences(run, corpus, rows, shown_sentences, results, advance)),
        answers=() if run_input.target_run else tuple(_answers(run_input, searched_results)),
    )


class _CountingIterable:
    """Iterable that reports its progress."""

    def __init__(self, items: Iterable[Any], stage: str, total: int, advance: Callable[..., None]) -> None:
        self.items, self.stage, self.total, self.advance, self.done = items, stage, total, advance, 0

    def __iter__(self) -> Iterator[Any]:
        for item in self.items:
            yield item
            self.done += 1
            self.advance(self.stage, self.done, self.total)


def _describe_corpus(run_input: RunInput, rows: int) -> CorpusSummary:
    corpus, target_run = run_input.corpus, run_input.target_run
    sides = [[number for row in range(rows) for number in side[row]] for side in (corpus.src, corpus.tgt)]
    unknown = sum(int(number) == UNK for side in sides for number in side)
    return CorpusSummary(run_input.name, rows, len(corpus), len(sides[0]), len(sides[1]), unknown, target_run)


def has_importance(run: Run) -> bool:
    """Return whether the importance of a run's heads can be measured."""
    return isinstance(run.model, TransformerSeq2Seq | LanguageModel)


def _importance(
    run: Run, reader: AttentionReader, corpus: Corpus, rows: int, advance: Callable[..., None]
) -> HeadImportance | None:
    if rows == 0 or not has_importance(run):
        return None
    batches: Sequence[Batch] = list(corpus.batches(BATCH, rows))
    total = (1 + sum(layer.heads for layer in reader.layers)) * len(batches)
    return head_importance(run.model, _CountingIterable(batches, "importance", total, advance))


def _history(run: Run, read: Callable[..., Any]) -> Any:
    """Return the values of a kind in a run's log; None if there are none. Warn about a damaged log."""
    if not (run.folder / LOG).is_file():
        return None
    try:
        return read(run.folder)
    except NoValuesError:
        return None
    except InputError as error:
        warnings.warn(f"{error}; the report has no history of this run", IgnoredInputWarning, stacklevel=2)
        return None


def _search(
    run: Run, corpus: Corpus, rows: Sequence[int], options: Options, advance: Callable[..., None]
) -> dict[int, Result]:
    """Run beam search on each row and return the whole beams. Return no results for language models."""
    results: dict[int, Result] = {}
    if isinstance(run.model, LanguageModel):
        return results
    size = options.beam_size
    search: dict[str, Any] = {"beam_size": size, "n_best": size, "end_rule": options.end_rule}
    search["text"] = ambiguous_text(run.tgt_vocab)
    for first in range(0, len(rows), SEARCH_BATCH):
        part = rows[first : first + SEARCH_BATCH]
        batch = corpus.batch(part).to(device_of(run.model))
        part_results = beam_search(run.model, batch.src, batch.src_lengths, **search)
        results.update(zip(part, part_results, strict=True))
        advance("search", len(results), len(rows))
    return results


def _choose_example(results: dict[int, Result]) -> int | None:
    """Return the best example row. Prefer several outputs, then a complete list, then a likely second output."""

    def score(row: int) -> tuple[bool, bool, float]:
        hypotheses = results[row].hypotheses
        complete = results[row].certificate.kind == "complete"
        return len(hypotheses) > 1, complete, hypotheses[1].prob if len(hypotheses) > 1 else 0.0

    return max(results, key=score, default=None)


def _answers(run_input: RunInput, results: dict[int, Result]) -> Iterator[SearchedAnswer]:
    """Yield the best output of each searched row with its reference."""
    run, corpus, answers = run_input.run, run_input.corpus, run_input.answers
    for row, result in results.items():
        best = result.best
        text = run.tgt_vocab.decode(best.tokens) if best else None
        references = (
            [run.tgt_vocab.decode([int(number) for number in corpus.tgt[row]])] if answers is None else answers[row]
        )
        yield SearchedAnswer(
            index=row,
            source=tuple(run.src_vocab.name(int(number)) for number in corpus.src[row]),
            reference=" / ".join(references),
            answer=text,
            right=text in references,
            prob=best.prob if best else None,
            certificate=result.certificate.kind,
        )


def _searched_empty_rate(run: Run, corpus: Corpus, results: dict[int, Result]) -> EmptyRate | None:
    """Return the rate of empty outputs among the searched rows, with row numbers of the corpus."""
    rows = list(results)
    if not rows:
        return None
    searched = Corpus([[*corpus.src[row]] for row in rows], [[*corpus.tgt[row]] for row in rows])
    return empty_rate(run.model, searched, list(results.values()), run.tgt_vocab).of_rows(rows)


def _sentences(
    run: Run,
    corpus: Corpus,
    rows: Sequence[int],
    shown_sentences: ShownSentences,
    results: dict[int, Result],
    advance: Callable[..., None],
) -> Iterator[SentenceSummary]:
    for number, row in enumerate(rows, 1):
        sentence, result = shown_sentences.sentences[row], results.get(row)
        src = corpus.batch([row]).src.to(device_of(run.model))
        yield SentenceSummary(
            text=sentence.text,
            weights=sentence.weights,
            steps=shown_sentences.steps[row],
            answer=run.tgt_vocab.decode(result.best.tokens) if result and result.best else None,
            tree=beam_tree(run.model, src, result, run.tgt_vocab) if result else None,
        )
        advance("trees", number, len(rows))


class CorpusPass(AttentionPass):
    """Pass of a run's model over a corpus. The pass records weights and outputs of the same batches.

    Args:
        run: Run of an encoder-decoder with discrete attention, or of a language model.
        corpus: Corpus encoded by the run's vocabularies.
        count: Number of sentences to read from the beginning.
        examples, counts: See :class:`AttentionPass`.

    Raises:
        InputError: If the run has another kind of model.
    """

    def __init__(self, run: Run, corpus: Corpus, count: int, examples: int, counts: PieceCounts | None) -> None:
        try:
            reader = read_model(run.model, run.src_vocab, run.tgt_vocab)
        except ValueError as error:
            raise InputError(f"{run.folder}: {error}") from error
        super().__init__(reader, corpus.batches(BATCH, count), examples, counts)
        self.run, self.corpus, self.outputs = run, corpus, Outputs(run.model)

    def update(self, batch: RecordedBatch) -> None:
        """Update the statistics of attention and of outputs with a batch."""
        super().update(batch)
        self.outputs.update(batch.result, batch.batch)


class ShownSentences(ReportWeights):
    """Weights and teacher-forced steps of the sentences that a report shows.

    Args:
        corpus_pass: Pass over the corpus, with the run and the reader.
        rows, heads: See :class:`ReportWeights`.
    """

    def __init__(self, corpus_pass: CorpusPass, rows: Sequence[int], heads: dict[int, set[HeadKey]]) -> None:
        self.run, corpus = corpus_pass.run, corpus_pass.corpus
        self.steps: dict[int, tuple[TeacherForcedStep, ...]] = {}
        lengths = corpus.lengths()
        order = sorted({*rows, *heads}, key=lambda row: (int(lengths[row].sum()), row))
        batches = (corpus.batch(order[first : first + BATCH]) for first in range(0, len(order), BATCH))
        super().__init__(corpus_pass.reader, batches, rows, heads)

    def read_outputs(self, batch: RecordedBatch) -> None:
        """Record the teacher-forced steps of a batch."""
        run = self.run
        self.steps.update(describe_steps(run.model, batch.result, batch.batch, run.tgt_vocab, WORDS, self.rows))


def empty_rate(model: Any, corpus: Corpus, results: Sequence[Result], vocabulary: Any = None) -> EmptyRate:
    r"""Compute the share of sentences whose empty output is more probable than the best output of a search.

    .. math:: \frac{1}{N} \, \big|\{n : p(\langle/s\rangle \mid x_n) > p(\hat y_n \mid x_n)\}\big|

    (Tezekbayev et al. 2022, table 2; Stahlberg and Byrne 2019). Both log-probabilities are sums in
    float64 over the same steps, and are compared exactly. A sentence never counts if its best output is empty.

    Args:
        model: Encoder-decoder model.
        corpus: Corpus with the sources.
        results: Results of a search, in the order of the corpus.
        vocabulary: Vocabulary of the outputs, if the results are texts that several sequences may spell.

    Returns:
        The share of such sentences, and a list of them.

    Raises:
        InputError: If the corpus is empty.
        ValueError: If there is not one result per sentence.

    Example:
        >>> import torch
        >>> from tsallis.models import RNNSeq2Seq
        >>> from tsallis.search import beam_search
        >>> model = RNNSeq2Seq(6, 6, d_model=8, output="softmax")
        >>> results = beam_search(model, torch.tensor([[4, 5]]), torch.tensor([2]), beam_size=4)
        >>> empty_rate(model, Corpus([[4, 5]], [[5]]), results).rate  # the best of all was found
        0.0
    """
    if len(corpus) == 0:
        raise InputError("the corpus is empty: there are no outputs to compare")
    if len(results) != len(corpus):
        raise ValueError(
            f"results must have one result per sentence, got {len(results)} results for {len(corpus)} sentences"
        )
    outputs = []
    empties = empty_log_probs(model, corpus, vocabulary=vocabulary).tolist()
    for index, (empty, result) in enumerate(zip(empties, results, strict=True)):
        best = result.best
        log_prob = best.log_prob if best else -float("inf")
        if compare_empty(empty, result, vocabulary)[0]:
            outputs.append(EmptyOutput(index, empty, log_prob))
    return EmptyRate(len(corpus), len(outputs) / len(corpus), tuple(outputs))
