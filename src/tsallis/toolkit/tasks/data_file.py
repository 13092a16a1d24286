"""Configurations for files of columns: guess how strings are split into symbols, and choose settings by size."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from tsallis.errors import IgnoredInputWarning, InputError, shorten
from tsallis.toolkit.config import apply_overrides
from tsallis.toolkit.data.io import read_lines
from tsallis.toolkit.tasks.strings import split_features

EXPECTED = "source<TAB>target or source<TAB>target<TAB>features"
READ = 10_000  # maximum number of lines that are examined
FEW = 5_000  # with fewer examples than this, a model overfits easily
SOFT = {"copy", "density", "features", "input_feeding"}  # settings that hard monotonic attention excludes
LONGEST_WORD = 60  # characters, with spaces between phones; longer texts are sentences
# Column names that mark a header.
NAMES = {
    "source": ("source", "src", "input", "lemma", "word", "graphemes", "grapheme", "orthography", "spelling"),
    "target": (
        "target",
        "tgt",
        "output",
        "form",
        "inflected",
        "inflection",
        "phonemes",
        "phones",
        "pronunciation",
        "pron",
        "transcription",
        "ipa",
    ),
    "features": ("features", "feature", "feats", "tags", "tag", "msd", "morphology", "pos"),
}
FEATURE_SEPARATORS = ";,|"
MANY = 20  # minimum number of lines to recognise an unusual header
PEEKED = 100  # maximum number of lines that are searched for a tab
LONGEST_SYMBOL = 4  # parts between spaces are words if their mean length is at least half of this number


def is_data_file(path: Path) -> bool:
    """Return whether a path names a file of columns, not a YAML file.

    Raises:
        InputError: If the file ends in .tsv or .csv and its first lines have no tab.
    """
    if path.suffix in (".yaml", ".yml") or not path.is_file():
        return False
    table_suffixes, first = {".tsv", ".csv"} & set(path.suffixes), ""
    try:
        for line in islice((line for line in read_lines(path) if line.strip()), PEEKED):
            if "\t" in line:
                return True
            first = first or line
    except InputError:
        if table_suffixes:
            raise
        return False
    if table_suffixes:
        found = f"found {shorten(first)}; save the table as text with tabs"
        raise InputError(f"{path}: expected {EXPECTED}, columns separated by tabs, {found}")
    return False


def describe_file(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return a configuration for training on a file of columns, as the content of a YAML file.

    Args:
        path: Path of the file.
        overrides: Overrides that the user has chosen. The configuration fits them but does not contain them.

    Raises:
        InputError: If the file can't be read or has fewer than two columns, or an override is malformed.
    """
    chosen = _with_overrides({}, overrides)["data"]
    if chosen.get("task", "strings") != "strings":
        raise InputError(
            f"{path}: data.task={chosen['task']} needs a YAML file; a data file is always of the task strings"
        )
    if "train" in chosen:
        raise InputError(
            f"{path}: data.train can't be changed for a data file; name the other file in place of this one"
        )
    comment = chosen.get("comment")
    lines = [line for line in read_lines(path, EXPECTED) if line.strip()]
    if isinstance(comment, str) and comment:
        lines = [line for line in lines if not line.startswith(comment)] or lines[:1]
    rows = [line.rstrip("\t").split("\t") for line in lines[:READ]]  # spreadsheets end lines with empty cells
    width = Counter(map(len, rows)).most_common(1)[0][0]
    if width < 2:
        raise InputError(f"{path}: expected {EXPECTED} in most lines, found {shorten(lines[0])}")
    if all(cell[:1] == cell[-1:] == '"' for row in rows for cell in row if cell):
        hint = f"{path}: all columns are in quotation marks, which are read as part of the text"
        warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
    data: dict[str, Any] = {"folder": str(path.parent), "train": path.name}
    columns: dict[str, Any] = {"source": 1, "target": 2, "features": 3 if width > 2 else None}
    if named := _named_columns(rows[0]):
        data["header"] = True
        columns = named
        rows = rows[1:]
    data["columns"] = columns
    chosen = _with_overrides({"data": {**data, "columns": {**columns}}}, overrides)
    *sides, features = _column_numbers(chosen["data"].get("columns"), width)
    most = max(map(len, rows), default=width)
    if chosen["data"].get("columns") == columns and most > (last := max(*sides, *features)):
        ignored = f"column {most}" if most == last + 1 else f"columns {last + 1} to {most}"
        warnings.warn(f"{path}: ignored {ignored}; data.columns chooses columns", IgnoredInputWarning, stacklevel=2)
    rows = [row for row in rows if len(row) >= max(width, *sides, *features)]
    lengths: list[int] = []
    for side, name in zip(sides, ("src_symbols", "tgt_symbols"), strict=True):
        texts = [row[side - 1] for row in rows]
        lengths += map(len, texts)
        if _has_symbols_between_spaces(texts):
            data[name] = "spaces"
    if features:
        text = re.sub(r"\([^()]*\)", "", " ".join(row[column - 1] for row in rows for column in features))
        separator = max(FEATURE_SEPARATORS, key=text.count)
        data |= {"feature_separator": separator} if separator != FEATURE_SEPARATORS[0] else {}
        if "header" not in chosen["data"] and _looks_like_header(rows, features, separator):
            hint = f"{path}: line 1 is read as an example; if it is a header, set data.header=true"
            warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
    words = not features and 100 * sum(n > LONGEST_WORD for n in lengths) <= len(lengths)
    return {"version": 1, "data": data, **settings_for(len(lines), words, chosen)}


def _with_overrides(content: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Apply overrides to a content and return it. Its section `data` is empty if an override is not a section."""
    apply_overrides(content, overrides)
    data = content.get("data")
    return {**content, "data": data if isinstance(data, dict) else {}}


def _is_column(number: Any) -> bool:
    return type(number) is int and number > 0


def _column_numbers(columns: Any, width: int) -> tuple[int, int, list[int]]:
    """Return the columns of the source, the target and the features that a setting selects in lines of a width.

    Wrong values count as missing: the schema of the configuration reports them.
    """
    columns = columns if isinstance(columns, dict) else {}
    setting = columns.get("features", "auto")
    features: list[Any] = setting if isinstance(setting, list) else [] if setting is None else [setting]
    source, target = (
        number if _is_column(number) else default
        for number, default in ((columns.get("source"), 1), (columns.get("target"), 2))
    )
    if not all(map(_is_column, features)):
        features = [3] if {source, target} == {1, 2} and width > 2 else []
    return source, target, features


def _named_columns(header: Sequence[str]) -> dict[str, Any] | None:
    """Return the columns that a header names; None if the line names no source or no target."""
    cells = [cell.strip().lower() for cell in header]
    found = {key: [i for i, cell in enumerate(cells, 1) if cell in names] for key, names in NAMES.items()}
    if not found["source"] or not found["target"]:
        return None
    columns = {key: places[0] if places else None for key, places in found.items()}
    if len(cells) == 3 and 3 not in columns.values():
        columns["features"] = 3  # whatever its name, as without a header
    return columns


def _looks_like_header(rows: Sequence[Sequence[str]], features: Sequence[int], separator: str) -> bool:
    """Return whether the first of many lines is the only one whose features all occur in no other line."""
    names = [{x for column in features for x in split_features(row[column - 1], separator)} for row in rows]
    counts = Counter(name for row_names in names for name in row_names)
    only_unique = [all(counts[name] == 1 for name in row_names) for row_names in names]
    return len(rows) >= MANY and only_unique[0] and sum(only_unique) == 1


def _has_symbols_between_spaces(texts: Sequence[str]) -> bool:
    """Return whether most texts are short symbols separated by spaces, such as phones."""
    spaced = [text.split() for text in texts if " " in text.strip()]
    symbols = sum(map(len, spaced))
    return 2 * len(spaced) > len(texts) and sum(len(s) for text in spaced for s in text) < LONGEST_SYMBOL / 2 * symbols


def settings_for(count: int, words: bool, sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sections `model` and `training` for a number of examples.

    The fewer examples there are, the smaller is the model, and the higher are dropout and the number of epochs. After
    few pairs of words without features, hard monotonic attention is more accurate than soft attention
    (docs/results-models.md). The settings fit those that the user has chosen.
    """
    chosen, own = (part if isinstance(part := sections.get(name), dict) else {} for name in ("model", "training"))
    rate = own.get("learning_rate")
    few = count < FEW
    epochs = min(100, max(8, round(60 * (800 / count) ** 0.5)))
    model: dict[str, Any] = {"d_model": 256, "dropout": 0.5 if few else 0.3}
    training: dict[str, Any] = {"epochs": epochs, "validate_every": max(1, epochs // 20)}
    if few:
        training |= {"batch_size": 32, "learning_rate": 0.002, "schedule": "constant"}
    else:
        training["lowest_learning_rate"] = min(1e-5, rate) if isinstance(rate, float) and rate > 0 else 1e-5
    if chosen.get("architecture") == "transformer":
        layers = 2 if few else 4
        model |= {"heads": 4, "d_ff": 1024, "encoder_layers": layers, "decoder_layers": layers}
        training |= {"learning_rate": 0.0005} if few else {}
        return {"model": model, "training": training}
    model["layers"] = 1 if few else 2
    hard = 1 if few and words and not SOFT & chosen.keys() else None
    if chosen.get("monotonic", hard) is not None:
        model |= {"monotonic": 1, "input_feeding": False, "initial_state": "zeros"}
    return {"model": model, "training": training}
