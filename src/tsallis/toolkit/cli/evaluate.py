"""The command `tsallis evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tsallis.errors import InputError, truncate
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
from tsallis.toolkit.cli.output import check_writable, comparison_table, print_fields, score_table
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tsallis.search import Result
    from tsallis.toolkit.inference import TextRun
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.tasks.types import Lines
    from tsallis.toolkit.training import Run


MOST_WRONG = 10  # maximum number of wrong outputs to show
WIDEST = 60  # maximum number of characters shown per source
OF_SEARCH = ("mode", "beam_size", "budget", "length_penalty", "end_rule")


@search_options(
    *OF_SEARCH,
    modes=("beam", "exact"),
    help={"mode": "Search method. beam (the default): beam search. exact: the best output, with a proof."},
)
def evaluate(
    context: typer.Context,
    run: RunArgument,
    search: SearchOptions,
    inputs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN2] [FILE]",
            help="RUN2: run to compare with RUN. FILE: lines to evaluate on (-: standard input; default: a "
            "split of the data).",
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Split to evaluate on if FILE is missing: train, dev or test (default: test if there is "
            "one, else dev)."
        ),
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
        typer.Option(
            min=2, max=LENGTH, help="Number of tokens that a language model reads at once (default: the run's)."
        ),
    ] = None,
    others: With = None,
    language: SplitLanguage = None,
    images: SplitImages = None,
    checkpoint: Which = "best",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Evaluate a model on lines with reference outputs: quality, loss, certificates and sparsity.

    The scores of strings are accuracy, error rates and edit distance, with 95 % intervals; the first wrong outputs are
    also printed. A run of several languages also has scores per language and their means. The scores of translations
    are BLEU, chrF and TER with their signatures. The scores of texts are epsilon-perplexity and sparsemax score.

    With RUN2, print the scores of both runs, and the 95 % interval of their difference.

    The command also counts how often the empty output is more probable than the best output found. With --exact, it
    counts how often the empty output is more probable than every other output.

    On several processes: torchrun --nproc-per-node N -m tsallis evaluate RUN
    """
    from tsallis.toolkit.data.io import check_file, write_output
    from tsallis.toolkit.tasks.copying import copy_unknown
    from tsallis.toolkit.tasks.registry import load_config
    from tsallis.toolkit.tasks.scoring import evaluate_outputs
    from tsallis.toolkit.training.distributed import init_distributed
    from tsallis.toolkit.training.file_names import CONFIG

    file, second = _split_inputs(inputs or [])
    if second is not None and (out or manifest):
        raise InputError(f"--out and --manifest support only one run, got {run} and {second}")
    if file and split is not None:
        raise InputError(f"use either --split or FILE, not both: got {split} and {input_name(file)}")
    if file and length is not None:
        raise InputError(f"--length applies only to a split, got {input_name(file)}: leave out --length")
    check_writable(out, manifest)
    if file is not None and manifest is not None:
        if is_stdin(file):
            raise InputError("--manifest stores the digest of the input file: FILE must be a file, got standard input")
        check_file(file)  # reject pipes: they can be read only once, so they have no digest
    opened = open_run(run, checkpoint, device, others or ())
    loaded, task = opened.run, opened.task
    typed = [name for name in (*OF_SEARCH, "exact", "out") if _is_typed(context, name)]
    if not task.searched and typed:
        of_search = map(flag, typed)
        raise InputError(f"{run}: the task {task.name} uses no search: leave out {', '.join(of_search)}")
    config = load_config(loaded.folder / CONFIG)
    if file is None and split is None:
        split = "dev" if config.data.train is not None and config.data.test is None else "test"
    options = {"language": language, "images": images, "length": length}
    search = search.with_defaults(config.search.options)

    def score(opened: TextRun) -> Evaluated:
        if split is None:
            run, lines = read_all(opened.run, opened.task, file, gold=True, **options)
        else:
            lines = opened.task.split(opened.run, config.data, split, **options)
            run, lines = copy_unknown(opened.task, opened.run, lines)
        opened = opened.for_run(run)
        return Evaluated(opened, lines, *evaluate_outputs(opened.task, opened.run, lines, search, world))

    with init_distributed(device, "nothing was written") as world, world.share_mistakes():
        evaluated = score(opened)
        other = None if second is None else score(open_run(second, checkpoint, device))
    if not world.main:
        return
    lines, report = evaluated.lines, evaluated.report
    unit = "lines" if file or task.searched else "rows"
    data = split or input_name(file)
    words = "" if file else f" split of {language}" if language else " split"
    heading = f"on: {data}{words} ({lines.count} {unit})"
    if other is not None:
        _print_comparison(evaluated, other, data if as_json else None, heading)
        return
    # Compute everything, write files, then print: files are complete even if standard output is closed.
    files: dict[Path, str] = {}
    if out is not None:
        files[out] = _records(evaluated.opened.run, lines, evaluated.results)
    if manifest is not None:
        from tsallis.toolkit.tasks.manifest import describe_result, manifest_text

        evaluation: dict[str, Any] = {"split": split, **options, "checkpoint": checkpoint}
        if task.searched:
            budget = {"budget": EXPANSIONS} if search.mode == "exact" else {}
            evaluation |= {"mode": search.mode, **budget, **search.arguments}
        files[manifest] = manifest_text(describe_result(loaded, config, report, evaluation, others or (), file))
    for path, text in files.items():
        write_output(path, text)
    if as_json:
        labels = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
        labels = {name: value for name, value in labels.items() if value is not None}
        print(json.dumps({"run": str(run), "on": data, **labels, **report}))
    else:
        print_fields(heading)
        print(score_table(report))
        for line in _wrong_outputs(task, lines, evaluated.texts):
            print_fields(*line)


class Evaluated(NamedTuple):
    """Results of a run on lines with reference outputs."""

    opened: TextRun
    lines: Lines
    report: dict[str, Any]
    results: Sequence[Result]

    @property
    def texts(self) -> list[str]:
        """Texts of the best outputs."""
        from tsallis.toolkit.tasks.scoring import best_texts

        return best_texts(self.results, self.opened.run.tgt_vocab)


def _print_comparison(first: Evaluated, second: Evaluated, data: str | None, heading: str) -> None:
    """Print the scores of two runs. If `data` is given (the name of the lines), print JSON.

    Raises:
        InputError: If the runs have different tasks or references.
    """
    from tsallis.toolkit.tasks.scoring import compare_outputs

    names = [str(side.opened.run.folder) for side in (first, second)]
    task, other = first.opened.task, second.opened.task
    if other.name != task.name:
        raise InputError(f"{names[1]}: expected a run of the task {task.name}, found {other.name}")
    if first.lines.references != second.lines.references:
        raise InputError(f"{names[1]}: the references differ from those of {names[0]}: compare runs with the same data")
    compared = compare_outputs(task, first.texts, second.texts, first.lines.references)
    if data is None:
        print_fields(heading)
        print(comparison_table(names, compared))
    else:
        scores = {name: score._asdict() for name, score in compared.items()}
        print(json.dumps({"runs": names, "on": data, "samples": first.lines.count, "scores": scores}))


def _split_inputs(inputs: Sequence[Path]) -> tuple[Path | None, Path | None]:
    """Return the input file and the second run, each None if it is not among the arguments."""
    runs = [path for path in inputs if path.is_dir()]
    files = [path for path in inputs if not path.is_dir()]
    if len(runs) > 1 or len(files) > 1:
        raise InputError(f"expected at most one run and one file after RUN, found {', '.join(map(str, inputs))}")
    return (files[0] if files else None), (runs[0] if runs else None)


def _wrong_outputs(task: Task, lines: Lines, texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield rows that show the first wrong outputs, if the task has an accuracy."""
    right = task.line_scores(texts, lines.references).get("accuracy")
    wrong = [row for row, value in enumerate(right.values) if not value] if right is not None else []
    if not wrong:
        return
    yield ("",)
    yield (f"wrong outputs: {len(wrong)}" + (f", the first {MOST_WRONG}" if len(wrong) > MOST_WRONG else ""),)
    yield "line", "source", "output", "expected"
    for row in wrong[:MOST_WRONG]:
        yield str(lines.numbers[row] + 1), truncate(lines.titles[row], WIDEST), texts[row], lines.references[row]


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
