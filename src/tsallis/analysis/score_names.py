"""Define titles and formats of the scores of evaluations and validations, and which can select the best model."""

from __future__ import annotations

from typing import NamedTuple


class ScoreFormat(NamedTuple):
    """How a number is shown, and which one is better.

    Args:
        title: Name in a table.
        format: Format of the number in the table.
        lower_is_better: True for a loss or a distance.
        heading: Title of the figure of its values during training; made from `title` by default.
        axis: Name of that figure's axis; by default `title` up to its first comma.
        brief: Format with fewer digits; by default `format`.

    Example:
        >>> SCORES["accuracy"].title, format(0.8432, SCORES["accuracy"].format)
        ('accuracy', '84.32%')
    """

    title: str
    format: str
    lower_is_better: bool = False
    heading: str = ""
    axis: str = ""
    brief: str = ""


# By their names, in the order in which they are printed. A validation's name of a score begins with "dev_".
SCORES = {
    "samples": ScoreFormat("samples", "d"),
    "bleu": ScoreFormat("BLEU", ".2f"),
    "chrf": ScoreFormat("chrF", ".2f"),
    "ter": ScoreFormat("TER", ".2f", lower_is_better=True),
    "exact": ScoreFormat(
        "exactly the reference", ".2%", heading="Outputs that are the reference", axis="share", brief=".1%"
    ),
    "length_ratio": ScoreFormat("words, outputs / references", ".3f"),
    "macro_accuracy": ScoreFormat("accuracy, mean of languages", ".2%", brief=".1%"),
    "macro_levenshtein": ScoreFormat(
        "Levenshtein, of languages",
        ".3f",
        lower_is_better=True,
        heading="Distance to the reference, mean of languages",
    ),
    "accuracy": ScoreFormat("accuracy", ".2%", brief=".1%"),
    "word_error_rate": ScoreFormat("word error rate", ".2%", lower_is_better=True, brief=".1%"),
    "symbol_error_rate": ScoreFormat("symbol error rate", ".2%", lower_is_better=True, brief=".1%"),
    "levenshtein": ScoreFormat("mean Levenshtein", ".3f", lower_is_better=True, heading="Distance to the reference"),
    "loss": ScoreFormat(
        "loss a symbol", ".4f", lower_is_better=True, heading="Loss on the development set", brief=".3f"
    ),
    "epsilon_perplexity": ScoreFormat("epsilon-perplexity", ".2f", lower_is_better=True, brief=".1f"),
    "sparsemax_score": ScoreFormat("sparsemax score", ".4f"),
    "symbol_accuracy": ScoreFormat(
        "symbols right, gold before",
        ".2%",
        heading="Most probable symbols that are right, development set",
        axis="share",
        brief=".1%",
    ),
    "gold_in_support": ScoreFormat(
        "gold symbols in support", ".2%", heading="References’ symbols that are possible", axis="share", brief=".1%"
    ),
    "unknown_symbols": ScoreFormat("gold symbols unknown", "d"),
    "single": ScoreFormat("all mass on one hypothesis", ".1%"),
    "complete": ScoreFormat("certificate complete", ".1%"),
    "optimal": ScoreFormat("certificate optimal", ".1%"),
    "bounded": ScoreFormat("certificate bounded", ".1%"),
    "none": ScoreFormat("no certificate", ".1%"),
    "logit_norm": ScoreFormat("norm of the scores", ".2f", heading="Norm of the output’s scores ‖z‖", axis="mean norm"),
    "output_threshold": ScoreFormat(
        "threshold of the output", ".3f", heading="Threshold of the output τ(z)", axis="mean threshold"
    ),
    "output_support": ScoreFormat(
        "symbols in support a step", ".2f", heading="Possible symbols per step", axis="symbols"
    ),
    "output_sum": ScoreFormat("sum of outputs a step", ".4f"),
    "attention_support": ScoreFormat(
        "attended positions a step", ".2f", heading="Source positions attended to a step", axis="positions"
    ),
    "attention_support_teacher_forced": ScoreFormat("the same, mean of heads", ".2f"),
    "empty": ScoreFormat("without any hypothesis", "d"),
    "empty_rate": ScoreFormat("empty output more probable", ".2%"),
    "empty_best": ScoreFormat("empty output best of all", ".2%"),
    "empty_possible": ScoreFormat("empty output possible", ".2%"),
    "speed": ScoreFormat("symbols a second", ".0f"),
}
TEACHER_FORCED = ("loss", "gold_in_support", "symbol_accuracy")  # that may decide which checkpoint is best
OF_TEXT = ("epsilon_perplexity", "sparsemax_score")  # of teacher forcing, too, for texts that answer nothing


def find_score(name: str) -> ScoreFormat | None:
    """Return how a score is shown.

    Args:
        name: Name of the score, or of its mean over languages ("macro_ter").

    Returns:
        Its row of `SCORES`, or for a mean a copy of the score's row with another title. None for an unknown name.

    Example:
        >>> find_score("macro_ter").title, find_score("f1")
        ('TER, mean of languages', None)
    """
    own, single = SCORES.get(name), SCORES.get(name.removeprefix("macro_"))
    return own or (single and single._replace(title=f"{single.title}, mean of languages", heading=""))


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
    score = find_score(name)
    return -value if score is not None and score.lower_is_better else value
