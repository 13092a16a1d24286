"""Evaluation of a run: scores of outputs, in total and per language, and scores of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tsallis.analysis.score_names import TEACHER_FORCED, TEXT_SCORES
from tsallis.errors import InputError
from tsallis.search import Result, SearchOptions
from tsallis.toolkit.data.corpus import Corpus
from tsallis.toolkit.datasets.synthetic_corpus import SyntheticCorpus
from tsallis.toolkit.evaluation.metrics import evaluate
from tsallis.toolkit.evaluation.search_results import timed_search
from tsallis.toolkit.evaluation.teacher_forcing import row_hits, teacher_forced_scores
from tsallis.toolkit.evaluation.text_scores import CorpusScore
from tsallis.toolkit.tasks.base import Task
from tsallis.toolkit.tasks.types import Lines
from tsallis.toolkit.training.distributed import World
from tsallis.toolkit.training.run_folder import Run

BATCH = 64  # batch size for scoring texts


def evaluate_outputs(
    task: Task, run: Run, lines: Lines, options: SearchOptions, world: World | None = None
) -> tuple[dict[str, Any], list[Result]]:
    """Compute scores, loss, certificates, sparsity and speed on lines with reference outputs.

    If the task has no outputs to search for, the texts themselves are scored, with teacher forcing.

    Args:
        task: Task of the run.
        run: Run with the model.
        lines: Lines with reference outputs.
        options: Options of the search.
        world: Processes that share the lines of the search; default: this process alone.

    Returns:
        The values by name, and the search results. The values contain "intervals", the 95 % intervals of means over
        lines. If there are several languages, they contain "languages", the scores of each language.

    Raises:
        InputError: If no line has symbols that the run can read.
    """
    if not task.searched:
        report = score_texts(run.model, lines.corpus)
        if isinstance(lines.corpus, SyntheticCorpus):
            report["lengths"] = score_lengths(run.model, lines.corpus)
        return report, []
    if not len(lines.corpus):
        raise InputError(f"{run.folder}: nothing to evaluate: the run can read none of the lines")
    text = task.ambiguous_text(run.tgt_vocab)
    world = world or World()
    shard = lines.select(range(world.rank, len(lines.corpus), world.size)).corpus if world.size > 1 else lines.corpus
    parts = world.gather(timed_search(run.model, shard, options, text=text))
    results, seconds = [*parts[0][0]], max(seconds for _, seconds in parts)
    if world.size > 1:
        results = [parts[row % world.size][0][row // world.size] for row in range(len(lines.corpus))]
    texts = best_texts(results, run.tgt_vocab)
    scores, by_language = task.score(texts, lines.references), language_scores(task, texts, lines)
    report = score_values(scores, by_language)
    signatures = {score.name: score.signature for score in scores if score.signature}
    report.update(task.measure_outputs(texts, lines.references))
    if intervals := {score.name: score.lines.interval() for score in scores if score.lines}:
        report["intervals"] = intervals
    report.update({"signatures": signatures} if signatures else {})
    report.update({"languages": by_language} if by_language else {})
    vocabulary = run.tgt_vocab if text is not None else None
    return {**report, **evaluate(run.model, lines.corpus, results, seconds, vocabulary).as_dict()}, results


class ComparedScore(NamedTuple):
    """Score of two runs on the same lines, and the 95 % interval of the difference (paired bootstrap)."""

    first: float
    second: float
    difference: float
    interval: tuple[float, float]


def compare_outputs(
    task: Task, first: Sequence[str], second: Sequence[str], references: Sequence[str]
) -> dict[str, ComparedScore]:
    """Compare the outputs of two runs by the scores of their task."""
    return {
        score.name: ComparedScore(
            score.value, other.value, other.value - score.value, other.lines.interval(score.lines)
        )
        for score, other in zip(task.score(first, references), task.score(second, references), strict=True)
        if other.lines is not None
    }


def score_texts(model: Any, corpus: Corpus) -> dict[str, Any]:
    """Return the scores of texts by name, with the number of rows as "samples"."""
    scores = teacher_forced_scores(model, corpus, BATCH)
    names = (*TEXT_SCORES, *TEACHER_FORCED, "unknown_symbols", "output_support", "output_sum", "attention_support")
    return {"samples": len(corpus), **{name: getattr(scores, name) for name in names}}


def score_lengths(model: Any, corpus: SyntheticCorpus) -> dict[str, dict[str, float]]:
    """Return three values for each length: number of examples, accuracy per symbol, and accuracy per example."""
    hits = row_hits(model, corpus.batches(BATCH))
    by_length: dict[str, dict[str, float]] = {}
    for number, stream in enumerate(corpus.streams):
        rows = [hits[row] for row in range(number * corpus.num_examples, (number + 1) * corpus.num_examples)]
        correct, total = (sum(column) for column in zip(*rows, strict=True))
        exact_share = sum(num_correct == num_symbols for num_correct, num_symbols in rows) / len(rows)
        by_length[str(stream.max_length)] = {
            "samples": len(rows),
            "accuracy": correct / max(total, 1),
            "whole": exact_share,
        }
    return by_length


def best_texts(results: Sequence[Result], vocab: Any) -> list[str]:
    """Return the text of each result's best hypothesis; an empty string if a result has no hypothesis."""
    return [vocab.decode(r.best.tokens) if r.best else "" for r in results]


def score_values(pooled: Sequence[CorpusScore], by_language: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Return the scores by name; the first one selects the best model.

    If `by_language` has scores, the unweighted means over languages ("macro") come first.
    """
    values = {score.name: score.value for score in pooled}
    macro = {
        f"macro_{name}": sum(scores[name] for scores in by_language.values()) / len(by_language)
        for name in values
        if by_language
    }
    return {**macro, **values}


def language_scores(task: Task, texts: Sequence[str], lines: Lines, quick: bool = False) -> dict[str, dict[str, float]]:
    """Return the number of samples and the scores by language; empty if there is only one language.

    Args:
        task: Task that computes the scores.
        texts: Outputs of the first lines.
        lines: Lines with references and languages.
        quick: Whether to skip costly scores.
    """
    rows: dict[str, list[int]] = {}
    for row, language in enumerate((lines.languages or [])[: len(texts)]):
        rows.setdefault(language, []).append(row)
    if len(rows) < 2:
        return {}
    by_language: dict[str, dict[str, float]] = {}
    for language in sorted(rows):
        language_rows = rows[language]
        scores = task.score([texts[i] for i in language_rows], [lines.references[i] for i in language_rows], quick)
        by_language[language] = {"samples": len(language_rows), **{score.name: score.value for score in scores}}
    return by_language
