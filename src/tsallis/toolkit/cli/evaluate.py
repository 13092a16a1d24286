"""The command `tsallis evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tsallis.errors import InputError
from tsallis.search.options import EXPANSIONS, LENGTH, SearchOptions
from tsallis.toolkit.cli.input import input_name, is_stdin, read_all
from tsallis.toolkit.cli.options import (
    Device,
    Json,
    RunArgument,
    SplitImages,
    SplitLanguage,
    Which,
    With,
    flag,
    search_options,
)
from tsallis.toolkit.cli.output import check_writable, print_fields, score_table
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tsallis.search import Result
    from tsallis.toolkit.tasks.types import Lines
    from tsallis.toolkit.training import Run


OF_SEARCH = ("mode", "beam_size", "budget", "length_penalty", "end_rule")


@search_options(
    *OF_SEARCH,
    modes=("beam", "exact"),
    help={"mode": "Search method: beam search (beam, the default) or the best outputs with proof (exact)."},
)
def evaluate(
    context: typer.Context,
    run: RunArgument,
    search: SearchOptions,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="Input file (-: standard input; default: a split of the run's data)."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Split to use without FILE: train, dev or test (default: test).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write outputs and references to this file, one JSON object per line.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(help="Write the scores and everything needed to reproduce them to this file."),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=2, max=LENGTH, help="For language models: tokens read at once (default: the run's)."),
    ] = None,
    others: With = None,
    language: SplitLanguage = None,
    images: SplitImages = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score a model on lines with reference outputs: quality, loss, certificates and sparsity.

    Strings get accuracy and edit distance; a run of several languages also gets scores per language and their means.
    Translations get BLEU, chrF and TER with their signatures. Texts get epsilon-perplexity and sparsemax score.

    The command also counts how often the empty output is more probable than the answer found, or, with --exact, than
    every other output.
    """
    from tsallis.toolkit.data.io import check_file, write_output
    from tsallis.toolkit.tasks.registry import load_config
    from tsallis.toolkit.tasks.scoring import evaluate_outputs
    from tsallis.toolkit.training.file_names import CONFIG

    if file and split is not None:
        raise InputError(f"--split selects data of the run: it can't be used with {input_name(file)}")
    if file and length is not None:
        raise InputError(f"--length is for a split: each line of {input_name(file)} is one text")
    check_writable(out, manifest)
    if file is not None and manifest is not None:
        if is_stdin(file):
            raise InputError("--manifest needs a file to compute its digest: expected a file, found standard input")
        check_file(file)  # a pipe can be read only once: it has no digest
    opened = open_run(run, checkpoint, device, others or ())
    loaded, task = opened.run, opened.task
    typed = [name for name in (*OF_SEARCH, "exact", "out") if _is_typed(context, name)]
    if not task.searched and typed:
        of_search = map(flag, typed)
        raise InputError(f"{run}: a run of the task {task.name} is not searched and takes no {', '.join(of_search)}")
    config = load_config(loaded.folder / CONFIG)
    options = {"language": language, "images": images, "length": length}
    if file:
        lines = read_all(loaded, task, file, gold=True, **options)
    else:
        lines = task.split(loaded, config.data, split or "test", **options)
    search = search.with_defaults(config.search.options)
    report, results = evaluate_outputs(task, loaded, lines, search)
    # Compute everything, write files, then print: files are complete even if standard output is closed.
    files: dict[Path, str] = {}
    if out is not None:
        files[out] = _records(loaded, lines, results)
    if manifest is not None:
        from tsallis.toolkit.tasks.manifest import describe_result, manifest_text

        evaluation: dict[str, Any] = {"split": None if file else split or "test", **options, "checkpoint": checkpoint}
        if task.searched:
            budget = {"budget": EXPANSIONS} if search.mode == "exact" else {}
            evaluation |= {"mode": search.mode, **budget, **search.arguments}
        files[manifest] = manifest_text(describe_result(loaded, config, report, evaluation, others or (), file))
    for path, text in files.items():
        write_output(path, text)
    data = input_name(file) if file else split or "test"
    if as_json:
        labels = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        labels = {name: value for name, value in labels.items() if value is not None}
        print(json.dumps({"run": str(run), "on": data, **labels, **report}))
    else:
        unit = "lines" if file or task.searched else "rows"
        words = "" if file else f" split of {language}" if language else " split"
        print_fields(f"on: {data}{words} ({lines.count} {unit})")
        print(score_table(report))


def _is_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, even with its default value."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _records(run: Run, lines: Lines, results: Sequence[Result]) -> str:
    from tsallis.toolkit.evaluation.outputs import output_records

    of_rows = output_records(run.model, run.tgt_vocab, lines.corpus, lines.references, results)
    records = (
        {
            "line": lines.numbers[row] + 1,
            "source": lines.titles[row],
            **({"language": lines.languages[row]} if lines.languages else {}),
            **record,
        }
        for row, record in enumerate(of_rows)
    )
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
