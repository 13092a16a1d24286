"""Print the output of commands: rows of fields, JSON, and tables of scores."""

from __future__ import annotations

import codecs
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tsallis.errors import InputError, without_controls

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tsallis.toolkit.tasks.scoring import ComparedScore

NONZERO_ROWS = ("unknown_symbols",)  # rows that are omitted if the number is 0


NOTES: dict[str, None] = {}  # warnings about ignored input, each as one line and without repetitions


def print_notes() -> None:
    """Print the collected notes on standard error, once: before a training, or at the end of a command."""
    for note in NOTES:
        print(note, file=sys.stderr, flush=True)
    NOTES.clear()


def print_fields(*fields: str) -> None:
    """Print tab-separated fields. Escape control characters, because a terminal would execute them."""
    print("\t".join(map(without_controls, fields)))


def check_writable(*paths: Path | None, inputs: Iterable[Path | None] = (), runs: Iterable[Path] = ()) -> None:
    """Raise if a file can't be written, if two outputs have the same name, or if an output would replace an input.

    Args:
        paths: Files to write.
        inputs: Files that the command reads.
        runs: Run folders that the command reads; their data files are inputs, too.
    """
    read = {os.path.realpath(path) for path in inputs if path is not None}
    for run in runs:
        from tsallis.toolkit.tasks.registry import files_of_run

        read.update(map(os.path.realpath, files_of_run(run)))
    seen = set()
    for path in paths:
        if path is None:
            continue
        if str(path) == "-":
            raise InputError("expected the name of a file to write, got -")
        if path.is_dir():
            raise InputError(f"{path}: expected a file to write, found a folder")
        # Writing replaces the path, so it must not be a device.
        if path.exists() and not path.is_file():
            raise InputError(f"{path}: expected a file to write, found a device or a pipe")
        target = Path(os.path.realpath(path))  # follow links
        check_folder(target.parent)
        if str(target) in read:
            raise InputError(f"{path}: the command reads this file or its run needs it: write to a different file")
        if target in seen:
            raise InputError(f"{path}: two outputs would be written to this file: choose different files")
        seen.add(target)


def check_folder(folder: Path) -> None:
    """Raise if a folder can't be created or written to."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not nearest.is_dir():
        raise InputError(f"{nearest}: expected a folder, found a file")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"{nearest}: can't write to this folder: choose another folder")


def plain_name(file: Path) -> str:
    """Return the name of a file without its last ending and that of a compression.

    >>> plain_name(Path("data/words.en.tsv.gz"))
    'words.en'
    """
    return Path(file.name.removesuffix(".xz").removesuffix(".gz")).stem.lstrip(".") or "data"


def print_json(content: Any) -> None:
    """Print a JSON object on one line. Escape control characters, because a terminal would execute them."""
    from tsallis.toolkit.data.io import json_text

    # A stream that is not UTF-8 would replace other characters by escapes that JSON does not know.
    utf8 = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name == "utf-8"
    text = json_text(content, ensure_ascii=not utf8)
    print(re.sub("[\x7f-\x9f]", lambda match: f"\\u{ord(match[0]):04x}", text))  # JSON does not escape these


def score_table(report: dict[str, Any]) -> str:
    """Return the scores of an evaluation as a table. Scores that are not in `SCORES` come first."""
    from tsallis.analysis.score_names import SCORES, ScoreFormat, find_score
    from tsallis.toolkit.evaluation.metrics import Evaluation

    known = {*SCORES, *Evaluation.__dataclass_fields__}
    custom_scores = {key: value for key, value in report.items() if isinstance(value, float) and key not in known}
    titles = {key: find_score(key) or ScoreFormat(key, ".4f") for key in custom_scores}
    lines = [f"{titles[key].title:<34}{format(value, titles[key].format):>10}" for key, value in custom_scores.items()]
    rows = {key: row for key, row in SCORES.items() if key in report and (report[key] or key not in NONZERO_ROWS)}
    for key, row in rows.items():
        interval = report.get("intervals", {}).get(key)
        ends = "" if interval is None else "   95 %: {} to {}".format(*(format(end, row.format) for end in interval))
        lines.append(f"{row.title:<34}{format(report[key], row.format):>10}{ends}")
    lines += [f"{name}: {text}" for name, text in report.get("signatures", {}).items()]
    if report.get("languages"):
        lines += ["", *_language_table(report["languages"])]
    if "lengths" in report:
        lines += ["", f"{'length':<34}{'examples':>10}{'accuracy':>10}{'all right':>13}"]
    for name, scores in report.get("lengths", {}).items():
        lines.append(f"{name:<34}{scores['samples']:>10}{scores['accuracy']:>10.2%}{scores['whole']:>13.2%}")
    return "\n".join(lines)


def comparison_table(names: Sequence[str], scores: Mapping[str, ComparedScore]) -> str:
    """Return the scores of two runs as a table; `names` are the names of the runs."""
    from tsallis.analysis.score_names import SCORES

    width = max(12, *(len(name) + 2 for name in names))
    lines = [f"{'':<28}{names[0]:>{width}}{names[1]:>{width}}{'second - first':>16}   95 %"]
    for key, score in scores.items():
        row = SCORES[key]
        values = "".join(f"{format(value, row.format):>{width}}" for value in (score.first, score.second))
        difference, *ends = (format(value, f"+{row.format}") for value in (score.difference, *score.interval))
        lines.append(f"{row.title:<28}{values}{difference:>16}   {ends[0]} to {ends[1]}")
    return "\n".join(lines)


def _language_table(languages: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Return the lines of a table with one row per language and one column per score."""
    from tsallis.analysis.score_names import ScoreFormat, find_score

    names = next(iter(languages.values()))
    columns = {name: find_score(name) or ScoreFormat(name, ".4f") for name in names}
    titles = {name: column.title for name, column in columns.items()}
    widths = {name: max(10, len(title) + 2) for name, title in titles.items()}
    lines = [f"{'language':<34}" + "".join(f"{titles[name]:>{widths[name]}}" for name in names)]
    for language, scores in languages.items():
        cells = (f"{format(scores[name], columns[name].format):>{widths[name]}}" for name in names)
        lines.append(f"{language:<34}{''.join(cells)}")
    return lines
