"""The command `tsallis evaluate`."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from tsallis.errors import IgnoredInputWarning, InputError, truncate
from tsallis.search.options import EXPANSIONS, LENGTH, SearchOptions
from tsallis.toolkit.cli.input import input_name, is_stdin, read_all, warn_unknown
from tsallis.toolkit.cli.options import (
    Device,
    Json,
    RunArgument,
    SplitImages,
    SplitLanguage,
    Which,
    With,
    search_options,
    typed_flags,
)
from tsallis.toolkit.cli.output import (
    check_writable,
    comparison_table,
    print_fields,
    print_json,
    score_table,
)
from tsallis.toolkit.inference import open_run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tsallis.search import Result
    from tsallis.toolkit.config import Config
    from tsallis.toolkit.inference import TextRun
    from tsallis.toolkit.tasks.base import Task
    from tsallis.toolkit.tasks.types import Lines
    from tsallis.toolkit.training.distributed import World

MAX_WRONG = 10  # maximum number of wrong outputs to show
WIDEST = 60  # maximum number of characters shown per source
SEARCH_OPTIONS = ("mode", "beam_size", "budget", "length_penalty", "end_rule")


Inputs = Annotated[
    list[Path] | None,
    typer.Argument(
        metavar="[RUN2] [FILE]",
        help="RUN2: run to compare with RUN. FILE: lines to evaluate on (-: standard input; default: a "
        "split of the data).",
    ),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="Split to evaluate on if FILE is missing: train, dev or test (default: test if there is one, else dev)."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Write outputs and references to this file, one JSON object per line.")]
Manifest = Annotated[
    Path | None, typer.Option(help="Write the scores and everything needed to reproduce them to this file.")
]
Length = Annotated[
    int | None,
    typer.Option(min=2, max=LENGTH, help="Number of tokens that a language model reads at once (default: the run's)."),
]


@search_options(
    *SEARCH_OPTIONS,
    modes=("beam", "exact"),
    help={"mode": "Search method. beam (the default): beam search. exact: the best output, with a proof."},
)
def evaluate(
    context: typer.Context,
    run: RunArgument,
    search: SearchOptions,
    inputs: Inputs = None,
    split: Split = None,
    out: Out = None,
    manifest: Manifest = None,
    length: Length = None,
    ensemble_with: With = None,
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

    With RUN2, print only the scores of both runs, and the 95 % interval of their difference. Each run has the search
    settings of its configuration, unless an option replaces them.

    The command also counts how often the empty output is more probable than the best output found. With --exact, it
    counts how often the empty output is more probable than every other output.

    On several processes: torchrun --nproc-per-node N -m tsallis evaluate RUN
    """
    from tsallis.toolkit.data.io import write_output
    from tsallis.toolkit.tasks.registry import run_config
    from tsallis.toolkit.training.distributed import init_distributed

    file, second = _split_inputs(inputs or [])
    if second is not None and (out or manifest):
        raise InputError(f"--out and --manifest support only one run, got {run} and {second}")
    check_writable(out, manifest, inputs=[file, images], runs=[run, *(ensemble_with or ())])
    if file is not None:
        _check_options_of_file(file, split, length, manifest)
    with init_distributed(device, "nothing was written") as world, world.share_errors():
        opened = open_run(run, checkpoint, device, ensemble_with or ())
        if not opened.task.searched and (flags := typed_flags(context, (*SEARCH_OPTIONS, "exact", "out"))):
            raise InputError(f"{run}: the task {opened.task.name} uses no search: leave out {', '.join(flags)}")
        data = _Data.choose(file, split, run_config(opened.run.folder), language=language, images=images, length=length)
        typed, search = search, search.with_defaults(data.config.search.options)
        other = None if second is None else data.evaluate_other(second, opened, typed, checkpoint, device, world)
        evaluated = data.evaluate(opened, search, world)
    if not world.main:
        return
    if other is not None:
        _print_comparison(data, evaluated, other, as_json)
        return
    # Compute everything, write files, then print: files are complete even if standard output is closed.
    files = {} if out is None else {out: _records(evaluated)}
    if manifest is not None:
        files[manifest] = _manifest(data, evaluated, search, checkpoint, ensemble_with or ())
    for path, text in files.items():
        write_output(path, text)
    _print_scores(data, evaluated, str(run), as_json)


def _check_options_of_file(file: Path, split: str | None, length: int | None, manifest: Path | None) -> None:
    """Raise if options contradict FILE."""
    from tsallis.toolkit.data.io import check_file

    if split is not None:
        raise InputError(f"use either --split or FILE, not both: got {split} and {input_name(file)}")
    if length is not None:
        raise InputError(f"--length applies only to a split, got {input_name(file)}: leave out --length")
    if manifest is not None:
        if is_stdin(file):
            raise InputError("--manifest stores the digest of the input file: FILE must be a file, got standard input")
        check_file(file)  # reject pipes: they can be read only once, so they have no digest


class _Data(NamedTuple):
    """Lines to evaluate on: a file, or a split of the data of a run."""

    file: Path | None
    split: str | None  # None if there is a file
    config: Config
    options: dict[str, Any]  # options of the task

    @classmethod
    def choose(cls, file: Path | None, split: str | None, config: Config, **options: Any) -> _Data:
        if file is None and split is None:
            split = "dev" if config.data.train is not None and config.data.test is None else "test"
        return cls(file, split, config, options)

    @property
    def name(self) -> str:
        return self.split or input_name(self.file)

    def heading(self, evaluated: Evaluated) -> str:
        language = self.options["language"]
        words = "" if self.file else f" split of {language}" if language else " split"
        unit = "lines" if self.file or evaluated.opened.task.searched else "rows"
        return f"on: {self.name}{words} ({evaluated.lines.count} {unit})"

    def evaluate(self, opened: TextRun, search: SearchOptions, world: World) -> Evaluated:
        """Read the lines with a run, and evaluate its outputs."""
        from tsallis.toolkit.tasks.copying import copy_unknown
        from tsallis.toolkit.tasks.scoring import evaluate_outputs

        if self.split is None:
            run, lines = read_all(opened.run, opened.task, self.file, gold=True, **self.options)
        else:
            lines = opened.task.split(opened.run, self.config.data, self.split, **self.options)
            run, lines = copy_unknown(opened.task, opened.run, lines)
            warn_unknown(run, opened.task, lines, f"{self.split} split")
            if left_out := lines.count - len(lines.corpus):
                hint = f"{self.split} split: left out lines with an empty source ({left_out})"
                warnings.warn(hint, IgnoredInputWarning, stacklevel=2)
        opened = opened.for_run(run)
        opened.task.warn_variants(lines, self.name if self.file else f"{self.name} split")
        return Evaluated(opened, lines, *evaluate_outputs(opened.task, opened.run, lines, search, world))

    def evaluate_other(
        self, folder: Path, first: TextRun, typed: SearchOptions, checkpoint: str, device: str, world: World
    ) -> Evaluated:
        """Evaluate the run to compare with the first one, with its own search settings."""
        from tsallis.toolkit.tasks.registry import run_config

        if not first.task.searched:
            raise InputError(f"two runs of the task {first.task.name} can't be compared, because they have no outputs")
        opened = open_run(folder, checkpoint, device)
        if opened.task.name != first.task.name:
            raise InputError(f"{folder}: expected a run of the task {first.task.name}, found {opened.task.name}")
        return self.evaluate(opened, typed.with_defaults(run_config(folder).search.options), world)


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


def _print_comparison(data: _Data, first: Evaluated, second: Evaluated, as_json: bool) -> None:
    """Print the scores of two runs.

    Raises:
        InputError: If the runs have different references.
    """
    from tsallis.toolkit.tasks.scoring import compare_outputs

    names = [str(side.opened.run.folder) for side in (first, second)]
    if first.lines.references != second.lines.references:
        raise InputError(f"{names[1]}: the references differ from those of {names[0]}: compare runs with the same data")
    compared = compare_outputs(first.opened.task, first.texts, second.texts, first.lines.references)
    if as_json:
        scores = {name: score._asdict() for name, score in compared.items()}
        print_json({"runs": names, "on": data.name, "samples": len(first.lines.corpus), "scores": scores})
    else:
        print_fields(data.heading(first))
        print(comparison_table(names, compared))


def _print_scores(data: _Data, evaluated: Evaluated, run: str, as_json: bool) -> None:
    """Print the scores of a run, and its first wrong outputs."""
    if as_json:
        labels = {name: str(value) if isinstance(value, Path) else value for name, value in data.options.items()}
        labels = {name: value for name, value in labels.items() if value is not None}
        print_json({"run": run, "on": data.name, **labels, **evaluated.report})
    else:
        print_fields(data.heading(evaluated))
        hidden = evaluated.opened.task.hidden_scores
        print(score_table({name: value for name, value in evaluated.report.items() if name not in hidden}))
        if evaluated.report.get("accuracy", 1) < 1:  # other tasks would compute their scores twice
            for line in _wrong_outputs(evaluated.opened.task, evaluated.lines, evaluated.texts):
                print_fields(*line)


def _split_inputs(inputs: Sequence[Path]) -> tuple[Path | None, Path | None]:
    """Return the input file and the second run, each None if it is not among the arguments."""
    runs = [path for path in inputs if path.is_dir()]
    files = [path for path in inputs if not path.is_dir()]
    if len(runs) > 1 or len(files) > 1:
        raise InputError(f"expected at most one run and one file after RUN, found {', '.join(map(str, inputs))}")
    if runs and files and is_stdin(files[0]):
        raise InputError("two runs can't both read standard input: pass a file")
    return (files[0] if files else None), (runs[0] if runs else None)


def _wrong_outputs(task: Task, lines: Lines, texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield rows that show the first wrong outputs, if the task has an accuracy."""
    from tsallis.toolkit.evaluation.text_scores import LineScore

    scores = {score.name: score.lines for score in task.score(texts, lines.references, quick=True)}
    accuracy = scores.get("accuracy")
    wrong = [row for row, value in enumerate(accuracy.values) if not value] if isinstance(accuracy, LineScore) else []
    if not wrong:
        return
    yield ("",)
    yield (f"wrong outputs: {len(wrong)}" + (f", the first {MAX_WRONG}" if len(wrong) > MAX_WRONG else ""),)
    yield "line", "source", "output", "expected"
    for row in wrong[:MAX_WRONG]:
        number = f"{lines.languages[row]}:" if lines.languages else ""
        number += str(lines.numbers[row] + 1)
        yield number, truncate(lines.titles[row], WIDEST), texts[row], lines.references[row]


def _manifest(data: _Data, evaluated: Evaluated, search: SearchOptions, checkpoint: str, others: Sequence[Path]) -> str:
    from tsallis.toolkit.data.io import json_text
    from tsallis.toolkit.tasks.manifest import describe_result

    evaluation: dict[str, Any] = {"split": data.split, **data.options, "checkpoint": checkpoint}
    if evaluated.opened.task.searched:
        budget = {"budget": EXPANSIONS} if search.mode == "exact" else {}
        evaluation |= {"mode": search.mode, **budget, **search.arguments}
    result = describe_result(evaluated.opened.run, data.config, evaluated.report, evaluation, others, data.file)
    return json_text(result, indent=1) + "\n"


def _records(evaluated: Evaluated) -> str:
    from tsallis.toolkit.data.io import json_text
    from tsallis.toolkit.evaluation.outputs import output_records

    run, lines = evaluated.opened.run, evaluated.lines
    answers = [evaluated.opened.task.answers(reference) for reference in lines.references]
    row_records = output_records(run.model, run.tgt_vocab, lines.corpus, answers, evaluated.results)
    records = (
        {
            "line": lines.numbers[row] + 1,
            "source": lines.titles[row],
            **({"language": lines.languages[row]} if lines.languages else {}),
            **record,
        }
        for row, record in enumerate(row_records)
    )
    return "".join(f"{json_text(record)}\n" for record in records)
