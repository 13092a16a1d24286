"""Scores of outputs: of all lines, and of each language."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tsallis.evaluation.text_scores import CorpusScore
from tsallis.search import Result

if TYPE_CHECKING:
    from tsallis.tasks.base import Lines, Task


def best_texts(results: Sequence[Result], vocab: Any) -> list[str]:
    """Return the best hypotheses as text; nothing where there is none."""
    return [vocab.text(r.best.tokens) if r.best else "" for r in results]


def score_values(pooled: Sequence[CorpusScore], each: dict[str, dict[str, float]]) -> dict[str, float]:
    """Return scores by name; the first number says which model is best.

    With the scores of `each` language that is their mean, all languages counting the same ("macro").
    """
    values = {score.name: score.value for score in pooled}
    macro = {f"macro_{name}": sum(scores[name] for scores in each.values()) / len(each) for name in values if each}
    return {**macro, **values}


def language_scores(task: Task, texts: Sequence[str], lines: Lines, quick: bool = False) -> dict[str, dict[str, float]]:
    """Return the number of samples and the scores of each language, by its name; nothing where there is only one.

    Args:
        task: whose scores.
        texts: outputs of the first lines.
        lines: with their references and languages.
        quick: leave the costly scores out.
    """
    rows: dict[str, list[int]] = {}
    for row, language in enumerate((lines.languages or [])[: len(texts)]):
        rows.setdefault(language, []).append(row)
    if len(rows) < 2:
        return {}
    by_language: dict[str, dict[str, float]] = {}
    for language in sorted(rows):
        own = rows[language]
        scores = task.score([texts[i] for i in own], [lines.references[i] for i in own], quick)
        by_language[language] = {"samples": len(own), **{score.name: score.value for score in scores}}
    return by_language
