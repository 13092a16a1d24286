"""Define the titles and formats of scores, and which scores can select the best model."""

from __future__ import annotations

from typing import NamedTuple


class ScoreFormat(NamedTuple):
    """Title and format of a score, and whether lower values are better.

    Args:
        title: Name in logs, tables and figures.
        format: Format of the number in the table.
        lower_is_better: True for a loss or a distance.
        brief: Format with fewer digits; default: `format`.

    Example:
        >>> SCORES["accuracy"].title, format(0.8432, SCORES["accuracy"].format)
        ('accuracy', '84.32%')
    """

    title: str
    format: str
    lower_is_better: bool = False
    brief: str = ""


# Scores by name, in the order of printing. In validations, the names start with "dev_".
SCORES = {
    "samples": ScoreFormat("examples", "d"),
    "bleu": ScoreFormat("BLEU", ".2f"),
    "chrf": ScoreFormat("chrF", ".2f"),
    "ter": ScoreFormat("TER", ".2f", lower_is_better=True),
    "exact": ScoreFormat("equal to the reference", ".2%", brief=".1%"),
    "length_ratio": ScoreFormat("output / reference length", ".3f"),
    "macro_accuracy": ScoreFormat("accuracy, mean of languages", ".2%", brief=".1%"),
    "macro_word_error_rate": ScoreFormat("word errors, mean of languages", ".2%", lower_is_better=True, brief=".1%"),
    "macro_symbol_error_rate": ScoreFormat(
        "symbol errors, mean of languages", ".2%", lower_is_better=True, brief=".1%"
    ),
    "macro_levenshtein": ScoreFormat("edit distance, mean of languages", ".3f", lower_is_better=True),
    "accuracy": ScoreFormat("accuracy", ".2%", brief=".1%"),
    "word_error_rate": ScoreFormat("word error rate", ".2%", lower_is_better=True, brief=".1%"),
    "symbol_error_rate": ScoreFormat("symbol error rate", ".2%", lower_is_better=True, brief=".1%"),
    "levenshtein": ScoreFormat("edit distance", ".3f", lower_is_better=True),
    "loss": ScoreFormat("loss per symbol", ".4f", lower_is_better=True, brief=".3f"),
    "epsilon_perplexity": ScoreFormat("epsilon-perplexity", ".2f", lower_is_better=True, brief=".1f"),
    "sparsemax_score": ScoreFormat("sparsemax score", ".4f"),
    "symbol_accuracy": ScoreFormat("next-symbol accuracy", ".2%", brief=".1%"),
    "gold_in_support": ScoreFormat("correct symbol possible", ".2%", brief=".1%"),
    "unknown_symbols": ScoreFormat("unknown reference symbols", "d"),
    "single": ScoreFormat("only one possible output", ".1%"),
    "complete": ScoreFormat("proved complete", ".1%"),
    "optimal": ScoreFormat("proved optimal", ".1%"),
    "bounded": ScoreFormat("bounded", ".1%"),
    "none": ScoreFormat("nothing proved", ".1%"),
    "logit_norm": ScoreFormat("norm of the scores", ".2f"),
    "output_threshold": ScoreFormat("output threshold", ".3f"),
    "output_support": ScoreFormat("possible symbols per step", ".2f"),
    "output_sum": ScoreFormat("sum of the output values", ".4f"),
    "attention_support": ScoreFormat("attended positions per step", ".2f"),
    "attention_support_teacher_forced": ScoreFormat("attended, reference as input", ".2f"),
    "empty": ScoreFormat("inputs without an output", "d"),
    "empty_rate": ScoreFormat("empty output more probable", ".2%"),
    "empty_best": ScoreFormat("empty output is the best", ".2%"),
    "empty_possible": ScoreFormat("empty output possible", ".2%"),
    "speed": ScoreFormat("symbols per second", ".0f"),
}
TEACHER_FORCED = ("loss", "gold_in_support", "symbol_accuracy")  # scores that may select the best checkpoint
TEXT_SCORES = ("epsilon_perplexity", "sparsemax_score")  # scores with teacher forcing for language models


def find_score(name: str) -> ScoreFormat | None:
    """Return how a score is shown.

    Args:
        name: Name of the score, or of its mean over languages ("macro_ter").

    Returns:
        Entry of `SCORES`; for a mean, a copy of the score's entry with another title. None for an unknown name.

    Example:
        >>> find_score("macro_ter").title, find_score("f1")
        ('TER, mean of languages', None)
    """
    score, language_score = SCORES.get(name), SCORES.get(name.removeprefix("macro_"))
    return score or (language_score and language_score._replace(title=f"{language_score.title}, mean of languages"))


def rank_score(name: str, value: float) -> float:
    """Return a number that is larger for better scores: losses and distances change their sign.

    Args:
        name: Name of the score, or of its mean over languages ("macro_levenshtein").
        value: Value of the score.

    Returns:
        The value, or its negative.

    Example:
        >>> rank_score("accuracy", 0.5), rank_score("macro_levenshtein", 0.5)
        (0.5, -0.5)
    """
    score = find_score(name)
    return -value if score is not None and score.lower_is_better else value
