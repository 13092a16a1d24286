"""The table of scores has a row for every reported score, and determines the best value."""

from __future__ import annotations

import pytest

from tsallis.analysis.score_names import SCORES, TEACHER_FORCED, TEXT_SCORES, find_score, rank_score
from tsallis.toolkit.tasks.registry import TASKS

BY_NAME = sorted({*TEXT_SCORES, *TEACHER_FORCED, *(name for task in TASKS.values() for name in task.scores)})
LOWER = {"loss", "levenshtein", "word_error_rate", "symbol_error_rate", "ter", "epsilon_perplexity"}


@pytest.mark.parametrize("name", BY_NAME)
def test_every_score_defines_whether_lower_is_better(name: str) -> None:
    assert SCORES[name].lower_is_better == (name in LOWER)
    sign = -1 if name in LOWER else 1
    assert rank_score(name, 2.0) == rank_score(f"macro_{name}", 2.0) == sign * 2.0


def test_titles_fit_column_and_formats_are_valid() -> None:
    assert all(0 < len(score.title) < 34 for score in SCORES.values())
    assert len({score.title for score in SCORES.values()}) == len(SCORES)
    for score in SCORES.values():
        assert all(format(1, how) for how in (score.format, score.brief or score.format))


def test_macro_scores_use_format_of_the_score() -> None:
    assert find_score("macro_accuracy") == SCORES["macro_accuracy"]
    mean = find_score("macro_exact")
    assert mean is not None and mean.title == "equal to the reference, mean of languages"
    assert mean.format == SCORES["exact"].format


def test_unknown_scores_rank_higher_as_better() -> None:
    assert find_score("f1") is None and rank_score("f1", 0.5) == 0.5


def test_means_over_languages_are_printed_together() -> None:
    names = list(SCORES)
    first = names.index("macro_accuracy")
    scores = ["accuracy", "word_error_rate", "symbol_error_rate", "levenshtein"]
    assert names[first : first + 8] == [f"macro_{name}" for name in scores] + scores
