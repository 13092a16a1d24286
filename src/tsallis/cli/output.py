"""What commands print: lines of fields, and tables of scores."""

from __future__ import annotations

from typing import Any

ROWS = {
    "samples": ("samples", "d"),
    "bleu": ("BLEU", ".2f"),
    "chrf": ("chrF", ".2f"),
    "ter": ("TER", ".2f"),
    "exact": ("exactly the reference", ".2%"),
    "macro_accuracy": ("accuracy, mean of languages", ".2%"),
    "macro_levenshtein": ("Levenshtein, of languages", ".3f"),
    "accuracy": ("accuracy", ".2%"),
    "levenshtein": ("mean Levenshtein", ".3f"),
    "loss": ("loss a symbol", ".4f"),
    "symbol_accuracy": ("symbols right, gold before", ".2%"),
    "gold_in_support": ("gold symbols in support", ".2%"),
    "single": ("all mass on one hypothesis", ".1%"),
    "complete": ("certificate complete", ".1%"),
    "optimal": ("certificate optimal", ".1%"),
    "bounded": ("certificate bounded", ".1%"),
    "none": ("no certificate", ".1%"),
    "output_support": ("symbols in support a step", ".2f"),
    "output_sum": ("sum of outputs a step", ".4f"),
    "attention_support": ("attended positions a step", ".2f"),
    "attention_support_teacher_forced": ("the same, mean of heads", ".2f"),
    "empty": ("without any hypothesis", "d"),
    "empty_rate": ("empty output more probable", ".2%"),
    "speed": ("symbols a second", ".0f"),
}


def print_fields(*fields: str) -> None:
    """Print a line of results, its fields separated by tabs: a terminal obeys nothing of what the data holds."""
    from tsallis.errors import without_controls

    print("\t".join(map(without_controls, fields)))


def score_table(report: dict[str, Any]) -> str:
    """Return a table of an evaluation: numbers of `ROWS` under their titles, after scores that have none there."""
    from tsallis.evaluation.metrics import Evaluation

    known = {*ROWS, *Evaluation.__dataclass_fields__}
    others = {key: value for key, value in report.items() if isinstance(value, float) and key not in known}
    lines = [f"{key:<28}{value:>10.4f}" for key, value in others.items()]
    lines += [f"{title:<28}{format(report[key], how):>10}" for key, (title, how) in ROWS.items() if key in report]
    lines += [f"{name}: {text}" for name, text in report.get("signatures", {}).items()]
    if "languages" in report:
        lines += ["", f"{'language':<28}{'samples':>10}{'accuracy':>10}{'Levenshtein':>13}"]
    for name, scores in report.get("languages", {}).items():
        lines.append(f"{name:<28}{scores['samples']:>10}{scores['accuracy']:>10.2%}{scores['levenshtein']:>13.3f}")
    return "\n".join(lines)
