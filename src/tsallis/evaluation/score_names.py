"""Names of scores: which may decide the best checkpoint, and in which direction."""

from __future__ import annotations

TEACHER_FORCED = ("loss", "gold_in_support", "symbol_accuracy")  # that may decide which checkpoint is best
OF_TEXT = ("epsilon_perplexity", "sparsemax_score")  # of teacher forcing, too, for texts that answer nothing
LOWER_IS_BETTER = ("loss", "levenshtein", "ter", "epsilon_perplexity")


def rank_score(name: str, value: float) -> float:
    """Return a score such that a larger one is better: a loss or a distance with the other sign.

    Args:
        name: of the score, also as a mean of languages ("macro_levenshtein").
        value: of the score.

    Returns:
        The value, or its negative.

    Example:
        >>> rank_score("accuracy", 0.5), rank_score("macro_levenshtein", 0.5)
        (0.5, -0.5)
    """
    return -value if name.removeprefix("macro_") in LOWER_IS_BETTER else value
