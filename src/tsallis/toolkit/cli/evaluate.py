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
    help={"mode": "Search by a beam, or with a proof of the most probable outputs (exact); default: beam."},
)
def evaluate(
    context: typer.Context,
    run: RunArgument,
    search: SearchOptions,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="-: standard input; default: the config's split.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="train, dev or test of the config, in place of FILE; default: test.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file for outputs beside references, one JSON object a line.")
    ] = None,
    manifest: Annotated[
        Path | None,
        typer.Option(help="A file for the result and all that repeats it: configuration, digests, versions, machine."),
    ] = None,
    length: Annotated[
        int | None, typer.Option(min=2, max=LENGTH, help="Tokens of a row of a split's texts, of a language model.")
    ] = None,
    others: With = None,
    language: SplitLanguage = None,
    images: SplitImages = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Scores, loss, certificates and sparsity on lines with known outputs.

    Forms have accuracy and edit distance; a run of several languages also has the scores of each language and their
    means. Translations have BLEU, chrF and TER with their signatures, and lengths. Texts have epsilon-perplexity and
    sparsemax score, each token given those before it. The command also counts how often the empty output is more
    probable than the answer, and with --exact than all others.
    """
    from tsallis.toolkit.data.io import check_file, write_output
    from tsallis.toolkit.tasks.registry import load_config
    from tsallis.toolkit.tasks.scoring import evaluate_outputs
    from tsallis.toolkit.training.file_names import CONFIG

    if file and split is not None:
        raise InputError(f"--split is for the config's own data: {input_name(file)} was given, too")
    if file and length is not None:
        raise InputError(f"--length is for the config's own data: of {input_name(file)} each line is a text")
    check_writable(out, manifest)
    if file is not None and manifest is not None:
        if is_stdin(file):
            raise InputError("--manifest has a digest of what is scored: expected a file, found standard input")
        check_file(file)  # what can be read once alone has no digest, either
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
    # Files first: they are written where standard output is closed, too. All content is there before the first write.
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
    """Return whether the command line gives an option, be it by its default value."""
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
