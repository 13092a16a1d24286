"""Evaluation on test sets: scores such as accuracy and BLEU, sparsity, and certificates."""

from tsallis.toolkit.evaluation.metrics import Evaluation, evaluate
from tsallis.toolkit.evaluation.search_results import accuracy, search_corpus
from tsallis.toolkit.evaluation.teacher_forcing import TeacherForcedScores, teacher_forced_scores
from tsallis.toolkit.evaluation.text_scores import (
    CorpusScore,
    LineScore,
    levenshtein,
    translation_scores,
)

__all__ = [
    "CorpusScore",
    "Evaluation",
    "LineScore",
    "TeacherForcedScores",
    "accuracy",
    "evaluate",
    "levenshtein",
    "search_corpus",
    "teacher_forced_scores",
    "translation_scores",
]
