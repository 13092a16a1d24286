"""Render the tables of the README and the docs from committed results.

    python benchmarks/render.py            # write the pages and CSV files
    python benchmarks/render.py --check    # print the differences and exit with status 1, without writing

The files in `benchmarks/pages` contain one template per table of a page. On the page, the table is between
`<!-- table: NAME -->` and `<!-- end -->`. If the name of a page ends in `.csv`, it has one template, and the table is
written as that CSV file. A template gives each figure in braces:

    {maps-cpu.csv[shape=8192x2048, operation=entmax15, owner=tsallis, input=normal].both_to_dense | .2f}

This names a file of `benchmarks/results`, conditions that select exactly one row (`key=a or b` accepts either value,
`key!=a` excludes a value), a column, and a format. The format is one of Python, or `.1%` for "96.3 %" and `.1p` for
"96.3". With `max`, `min` or `mean` before the file, several rows may match; `count` gives their number. In a manifest,
the column is a path, as in `runs/NAME.json.metrics.bleu`; `mean runs/NAME-1,2,3.json.metrics.bleu` is the mean of three
runs. `$name` is replaced by the value of that name in the row of the table.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = Path(__file__).with_name("pages")
RESULTS = Path(__file__).with_name("results")
FIGURE = re.compile(r"\{(?:(?P<of>mean|min|max|count) )?(?P<file>[\w./,-]+?\.(?:csv|jsonl|json))(?P<rest>[^{}]*)\}")
SEVERAL = re.compile(r"(?P<stem>.*?)(?P<numbers>\d+(?:,\d+)+)(?P<end>(?:-\w+)?\.json)")
REST = re.compile(r"(?:\[(?P<where>[^\]]*)\])?(?:\.(?P<path>[\w.-]+))?(?: \| (?P<spec>[\w.,+%-]+))?")
BLOCK = re.compile(r"<!-- table: (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- end -->", re.S)
STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": statistics.fmean,
    "min": min,
    "max": max,
    "count": len,
}


class Mismatch(Exception):
    """A template does not fit the results or the page."""


@cache
def read_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a CSV or JSON Lines file; a JSON manifest is a single row."""
    name = f"{path.parent.name}/{path.name}" if path.suffix == ".json" else path.name
    if not path.is_file():
        raise Mismatch(f"{name}: is not there")
    try:
        text = path.read_bytes().decode("utf-8")
        if path.suffix == ".csv":
            return list(csv.DictReader(io.StringIO(text, newline="")))
        # Don't use str.splitlines: JSON strings may contain other characters that it takes for line ends.
        parts = [text] if path.suffix == ".json" else text.removesuffix("\n").split("\n")
        rows = [json.loads(part) for part in parts]
    except (ValueError, RecursionError, csv.Error) as error:
        raise Mismatch(f"{name}: can't be read: {error}") from error
    if not all(isinstance(row, dict) for row in rows):
        raise Mismatch(f"{name}: expected JSON objects")
    return rows


def find_figure(match: re.Match[str], results: Path = RESULTS) -> str:
    """Return the formatted figure for a placeholder."""
    parts = REST.fullmatch(match["rest"])
    if parts is None:
        raise Mismatch(f"not a figure: {match[0]}")
    conditions = [_condition(part) for part in re.split(r", (?=\w+!?=)", parts["where"] or "") if part]
    files = _name_files(match["file"])
    rows = [row for file in files for row in read_rows(results / file) if all(test(row) for test in conditions)]
    if not rows or (len(rows) > 1 and match["of"] is None):
        raise Mismatch(f"{match[0]}: {len(rows) or 'no'} rows")
    if match["of"] == "count":
        return str(len(rows))
    values = [_value(row, parts["path"] or "", match[0]) for row in rows]
    try:
        if match["of"] is not None:
            values = [STATISTICS[match["of"]]([float(value) for value in values])]
        return format_figure(values[0], parts["spec"])
    except (TypeError, ValueError, OverflowError) as error:  # not a number, or the wrong format
        raise Mismatch(f"{match[0]}: {error}") from error


def _name_files(name: str) -> list[str]:
    """Return the names of all files that a file name with several numbers refers to.

    >>> _name_files("runs/a-1,2.json"), _name_files("runs/a-1,2-every.json")
    (['runs/a-1.json', 'runs/a-2.json'], ['runs/a-1-every.json', 'runs/a-2-every.json'])
    """
    several = SEVERAL.fullmatch(name)
    if several is None:
        return [name]
    return [several["stem"] + number + several["end"] for number in several["numbers"].split(",")]


def _condition(text: str) -> Callable[[Mapping[str, Any]], bool]:
    """Return a function that tests a row for `key=value`, `key=one or another` or `key!=value`."""
    key, _, values = text.partition("=")
    expected, inverted = values.split(" or "), key.endswith("!")
    return lambda row: (str(row.get(key.rstrip("!"), "")) in expected) != inverted


def _value(row: Mapping[str, Any], path: str, name: str) -> Any:
    value: Any = row
    for key in path.split("."):
        if not isinstance(value, Mapping) or value.get(key) in (None, ""):
            raise Mismatch(f"{name}: there is no {key}")
        value = value[key]
    return value


def format_figure(value: Any, spec: str | None) -> str:
    """Format a value as Python does, or as a percentage with a space (`.1%`) or without a percent sign (`.1p`).

    >>> format_figure("0.9632", ".1%"), format_figure(0.9632, ".1p"), format_figure(1400, ",d")
    ('96.3 %', '96.3', '1,400')
    >>> format_figure(3.6e-7, ".1e"), format_figure(3.6, ".1e")
    ('3.6e-7', '3.6e0')
    """
    if spec is None:
        return str(value)
    if spec[-1] in "%p":
        return f"{100 * float(value):{spec[:-1]}f}" + (" %" if spec[-1] == "%" else "")
    text = format(round(float(value)) if spec[-1] == "d" else float(value), spec)
    return re.sub(r"e\+?(-?)0*(\d)", r"e\1\2", text)


def fill(template: str, results: Path = RESULTS) -> str:
    """Return a template with its placeholders replaced by figures."""
    return FIGURE.sub(lambda match: find_figure(match, results), template)


def render_cells(table: Mapping[str, Any], results: Path = RESULTS) -> list[list[str]]:
    """Return the column titles of a table, then the cells of each row, filled from the columns' templates."""
    columns: dict[str, str] = table["columns"]
    lines = [list(columns)]
    for row in table.get("rows") or _combinations(table["each"]):
        values = {**(table.get("values") or {}), **row}
        lines.append([fill(_substitute(row.get(title, cell), values), results) for title, cell in columns.items()])
    return lines


def render_table(table: Mapping[str, Any], results: Path = RESULTS) -> str:
    """Return a table in Markdown."""
    lines = [" | ".join(cells) for cells in render_cells(table, results)]
    head, *body = (re.sub(r"\|  (?=\|)", "| ", f"| {line} |\n") for line in lines)
    return "".join([head, "|" + "---|" * len(table["columns"]) + "\n", *body])


def render_csv(table: Mapping[str, Any], results: Path = RESULTS) -> str:
    """Return a table as the content of a CSV file."""
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(render_cells(table, results))
    return stream.getvalue()


def _combinations(each: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of values; the items of a list are numbered, as in `$language0`."""
    combinations = []
    for values in product(*each.values()):
        row: dict[str, Any] = {}
        for name, value in zip(each, values, strict=True):
            row |= {f"{name}{i}": part for i, part in enumerate(value)} if isinstance(value, list) else {name: value}
        combinations.append(row)
    return combinations


def _substitute(cell: str, values: Mapping[str, Any]) -> str:
    def value(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise Mismatch(f"${match[1]}: the row has no such value")
        return str(values[match[1]])

    return re.sub(r"\$(\w+)", value, str(cell))


def render_page(page: str, tables: Mapping[str, Any], results: Path = RESULTS) -> str:
    """Return a page with its tables filled; each table must be on the page exactly once."""
    names = [match["name"] for match in BLOCK.finditer(page)]
    if missing := sorted(set(names) - set(tables)):
        raise Mismatch(f"there is no template of the table {missing[0]}")
    if sorted(names) != sorted(tables):
        raise Mismatch(f"templates of the tables {', '.join(sorted(tables))}; on the page: {', '.join(sorted(names))}")
    marks = "<!-- table: {} -->\n{}<!-- end -->"
    return BLOCK.sub(lambda match: marks.format(match["name"], render_table(tables[match["name"]], results)), page)


def render(check: bool, root: Path = ROOT, templates: Path = PAGES, results: Path = RESULTS) -> list[str]:
    """Write every page, or only check it if `check` is true; return one line per problem."""
    wrong, pages = [], {}
    for file in sorted(templates.glob("*.yaml")):
        pages.update(yaml.safe_load(file.read_text(encoding="utf-8")))
    for name, page in pages.items():
        path = root / name
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        try:
            is_csv = path.suffix == ".csv"
            after = render_csv(page, results) if is_csv else render_page(before, page["tables"], results)
        except Mismatch as error:
            wrong.append(f"{name}: {error}")
            continue
        if after != before and check:
            lines = zip(before.split("\n"), after.split("\n"), strict=False)
            number = next(i for i, (old, new) in enumerate([*lines, ("", "-")], start=1) if old != new)
            wrong.append(f"{name}:{number}: not what the rows say; `make results` writes it anew")
        elif after != before:
            path.write_text(after, encoding="utf-8")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only print the differences, without writing")
    wrong = render(parser.parse_args().check)
    print(*wrong, sep="\n", file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
