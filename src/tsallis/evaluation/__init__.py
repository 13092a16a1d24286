"""Evaluation: accuracy, BLEU and the like, and the sparsity and certificates of a model on a test set."""

from tsallis.evaluation.metrics import (
    CorpusScore,
    Evaluation,
    TeacherForcedScores,
    accuracy,
    evaluate,
    exact_match,
    form_scores,
    levenshtein,
    search_corpus,
    teacher_forced_scores,
    translation_scores,
)

__all__ = [
    "CorpusScore",
    "Evaluation",
    "TeacherForcedScores",
    "accuracy",
    "evaluate",
    "exact_match",
    "form_scores",
    "levenshtein",
    "search_corpus",
    "teacher_forced_scores",
    "translation_scores",
]
