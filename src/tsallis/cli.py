"""The command `tsallis`. Heavy imports stand inside the commands: `--help` answers at once."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from io import TextIOWrapper
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

try:
    import typer
except ModuleNotFoundError:
    print("tsallis: the commands need more than the library does: pip install 'tsallis[toolkit]'", file=sys.stderr)
    raise SystemExit(2) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tsallis.config import Config
    from tsallis.data.batching import Batch
    from tsallis.data.corpus import Corpus
    from tsallis.prepare import Prepared
    from tsallis.search import Hypothesis, Result
    from tsallis.tasks import Lines
    from tsallis.training import Run
    from tsallis.training.distributed import World
    from tsallis.training.lock import Lock

app = typer.Typer(
    help="Sparse probability in PyTorch: train, translate and look at models with exact zeros.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Known data sets: list them, fetch them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

UsageError: Any = typer.BadParameter.__mro__[1]  # which typer doesn't export
BLOCK = 64  # lines of input that are answered before the next ones are read
MOST = 1_000  # prefixes of a beam, outputs of a line
MOST_EXPANSIONS = 1_000_000

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
FileArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Input file; default: standard input.")]
Beam = Annotated[int | None, typer.Option(min=1, max=MOST, help="Beam size; default: the run's.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Language = Annotated[str | None, typer.Option(help="The lines' language, for a run of several.")]
Images = Annotated[Path | None, typer.Option(help="Images that lines name; default: those of the config's test split.")]
SplitLanguage = Annotated[
    str | None, typer.Option("--language", help="FILE's language, for a run of several; of a split, only this one.")
]
SplitImages = Annotated[
    Path | None, typer.Option("--images", help="Images that lines name; default: those of the config's split.")
]
Which = Annotated[str, typer.Option("--checkpoint", help="best, last or average (see `tsallis average`).")]
BUDGET = 10_000  # prefixes an exhaustive search may expand a line
SHOWN = 3  # words whose answers the demo lists
LISTED = 10  # answers listed a word


def main(command: Callable[[], object] = app) -> None:
    """Run a command; a mistake in its input is one line on standard error and exit status 2."""
    from tsallis.errors import InputError, memory_for, one_line

    if sys.stderr is None:
        # Whatever is opened next must not take its place.
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    status: object = 0
    try:
        if sys.stdout is None:
            raise InputError("standard output is closed")
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        with memory_for("the work"):
            status = _run(command)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_output()  # its reader has seen enough
    except (InputError, OSError) as error:
        _discard_output()
        if os.environ.get("LOCAL_RANK", "0") == "0" or not _known_to_all(error):
            rank = os.environ.get("RANK", "0")
            process = f" (process {rank})" if rank != "0" else ""
            with contextlib.suppress(OSError):
                print(one_line(f"tsallis{process}: {_explain(error)}"), file=sys.stderr, flush=True)
        status = 2
    raise SystemExit(status)


def _run(command: Callable[[], object]) -> object:
    """The exit status of a command, whose arguments may be wrong."""
    from tsallis.errors import InputError

    try:
        return app(prog_name="tsallis", standalone_mode=False) if command is app else command()
    except typer.Abort:
        return 130
    except SystemExit as leave:
        if isinstance(leave.__context__, BrokenPipeError):  # typer makes it an exit status of 1
            raise leave.__context__ from None
        raise
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error.format_message())
            return 2
        path = error.ctx.command_path if error.ctx else "tsallis"
        raise InputError(f"{error.format_message().removesuffix('.')} (see {path} --help)") from error


def _explain(error: Exception) -> str:
    if not isinstance(error, OSError):
        return str(error)
    return f"{error.filename or 'standard output'}: {error.strerror or error}"


def _discard_output() -> None:
    """Write what is left of the output; where that fails, let it go nowhere, or Python would complain at exit."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _known_to_all(error: Exception) -> bool:
    """Tell whether every process of the run raised this error, so that only the first need print it."""
    world = sys.modules.get("tsallis.training.distributed")
    return world is not None and isinstance(error, world.CommonError)


def _print(*fields: str) -> None:
    """Print a line of results, its fields separated by tabs: a terminal obeys nothing of what the data holds."""
    from tsallis.errors import without_controls

    print("\t".join(map(without_controls, fields)))


@app.command()
def info() -> None:
    """Versions and the machine."""
    import platform

    import torch

    import tsallis
    from tsallis.ops import backend

    print(f"tsallis {tsallis.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"threads {torch.get_num_threads()}, CUDA {'yes' if torch.cuda.is_available() else 'no'}")
    print(f"backend {backend.explain()}")
    print(f"backend on a GPU {backend.explain_gpu()}")


@data_app.command("list")
def data_list() -> None:
    """The data sets that can be fetched."""
    from tsallis.datasets.registry import SOURCES

    for source in SOURCES.values():
        print("\n".join(source.describe()))


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `tsallis data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to; default: data/NAME.")] = None,
    languages: Annotated[
        str | None,
        typer.Option(help="Only these (sides, of a parallel corpus; files, where there are no languages): de,en."),
    ] = None,
) -> None:
    """Fetch a data set: resumes; files are compared with their known digest, or with that of the first transfer."""
    from tsallis.datasets.registry import get

    chosen = languages.split(",") if languages else None
    for path in get(
        name, folder or Path("data") / name, chosen, lambda text: print(f"fetching {text}", file=sys.stderr)
    ):
        _print(str(path))


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, see recipes/.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder; default: run_dir of the config.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
) -> None:
    """Train a model, or go on with a training that was interrupted.

    On several processes: torchrun --nproc-per-node N -m tsallis train CONFIG
    """
    from tsallis.config import load_config
    from tsallis.training.distributed import joined

    with joined(device) as world:
        loaded = world.together(lambda: load_config(config, overrides or []))
        _train(loaded, run_dir or (Path(loaded.run_dir) if loaded.run_dir else Path("runs") / config.stem), world)


def _train(loaded: Config, folder: Path, world: World) -> None:
    from tsallis.prepare import prepare
    from tsallis.training import Trainer
    from tsallis.training.progress import TrainingDisplay
    from tsallis.training.run_folder import locked, start_run

    with contextlib.ExitStack() as stack:

        def start() -> tuple[Prepared, Any, Lock | None, bool]:
            lock = stack.enter_context(locked(folder)) if world.main else None
            prepared = prepare(loaded, folder)
            model = prepared.build()
            arguments = (prepared.description, prepared.task, prepared.data.src_vocab, prepared.data.tgt_vocab)
            return prepared, model, lock, world.main and start_run(folder, loaded.text(), *arguments, lock)

        prepared, model, lock, resumed = world.together(start)
        data, settings = prepared.data, prepared.settings
        display = stack.enter_context(TrainingDisplay(folder, resumed, settings.epochs, quiet=not world.main))
        display.counts(data.train.counts)
        Trainer(model, data.train, data.dev, folder, settings, display.update, prepared.measure(), world, lock).run()


@app.command()
def average(
    run: RunArgument,
    last: Annotated[int | None, typer.Option(min=1, help="How many; default: all that were kept.")] = None,
) -> None:
    """Average the parameters of the last validated checkpoints, of which training.keep are kept."""
    from tsallis.errors import InputError
    from tsallis.training.checkpoint import Checkpoints
    from tsallis.training.run_folder import locked

    if not (run / "model.json").exists():
        raise InputError(f"{run}: not a run folder (it has no model.json)")
    with locked(run):  # a training would write its index over ours
        names = Checkpoints(run / "checkpoints").average(last)
    _print(f"averaged {', '.join(names)}: use it with --checkpoint average")


@app.command()
def translate(
    run: RunArgument,
    file: FileArgument = None,
    nbest: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="The best outputs of a line, so many; default: 1, or with --all every one."),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(min=1, max=MOST, help="Beam size; default: the run's, or as many as --nbest if that is more."),
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every output with a probability, by exhaustive search.")
    ] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_EXPANSIONS,
            help=f"Prefixes --all may expand a line; default: {BUDGET}, all of which a softmax model takes.",
        ),
    ] = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Outputs for lines: forms of `lemma<TAB>tags`, translations of sentences, labels of documents, or answers to
    `image<TAB>question`.

    Prints the best output a line, after every 64 lines of input. With --nbest above 1 or --all: the number of the
    line, the output, its probability and the certificate, separated by tabs. With both, the search
    ends when the N most probable outputs of all are proved.
    """
    from tsallis.errors import InputError
    from tsallis.search import beam_search, exhaustive
    from tsallis.training import load_run

    if every and beam is not None:
        raise InputError("--beam is for beam search: --all searches without a beam (--budget limits it)")
    if budget is not None and not every:
        raise InputError("--budget is for --all")
    loaded = load_run(run, checkpoint)
    n_best, many = nbest or 1, every or (nbest or 1) > 1
    size = beam or max(_beam_size(loaded), n_best)
    for first, lines in _blocks(loaded, file, gold=False, language=language, images=images):
        results: list[Result] = []
        printed = 0
        for batch in _batches(lines.corpus):
            if every:
                results += exhaustive(loaded.model, batch.src, batch.src_lengths, budget=budget or BUDGET, n_best=nbest)
            else:
                results += beam_search(loaded.model, batch.src, batch.src_lengths, beam_size=size, n_best=n_best)
        for offset, result in zip(lines.places, results, strict=True):
            _print_nothing(range(first + printed, first + offset), as_json, many)
            printed = offset + 1
            _print_result(loaded, first + printed, result, as_json, many)
        _print_nothing(range(first + printed, first + lines.count), as_json, many)
        sys.stdout.flush()


def _print_nothing(places: range, as_json: bool, many: bool) -> None:
    """Lines with nothing in them have no outputs; elsewhere than in a list of outputs they keep their place."""
    for offset in places:
        if as_json:
            print(json.dumps({"line": offset + 1, "certificate": "none", "bound": None, "mass": 0.0, "hypotheses": []}))
        elif not many:
            print()


def _print_result(run: Run, line: int, result: Result, as_json: bool, many: bool) -> None:
    from tsallis.tasks import task_of

    if as_json:
        bound = result.certificate.bound
        content = {
            "line": line,
            "certificate": result.certificate.kind,
            "bound": None if bound == float("-inf") else bound,
            "mass": result.mass,
            "hypotheses": [_described(run, h, task_of(run.task).noun) for h in result.hypotheses],
        }
        text = json.dumps(content, ensure_ascii=False)
        # Controls that JSON takes as they are, and halves of surrogate pairs.
        print(re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match[0]):04x}", text))
    elif many:
        for h in result.hypotheses:
            _print(str(line), run.tgt_vocab.text(h.tokens), f"{h.prob:.6g}", result.certificate.kind)
    else:
        _print(run.tgt_vocab.text(result.best.tokens) if result.best else "")


def _described(run: Run, hypothesis: Hypothesis, noun: str) -> dict[str, Any]:
    return {
        noun: run.tgt_vocab.text(hypothesis.tokens),
        "prob": hypothesis.prob,
        "log_prob": hypothesis.log_prob,
        "support": hypothesis.support,
        "attended": hypothesis.attended,
    }


def _beam_size(run: Run) -> int:
    from tsallis.config import load_config

    return load_config(run.folder / "config.yaml").search.beam_size


def _read(run: Run, file: Path | None, gold: bool, **options: Any) -> Lines:
    """All lines of a file, or of standard input."""
    from tsallis.tasks import read_lines

    with _opened(run, file, gold) as (lines, name):
        return read_lines(run, list(lines), name, gold, **options)


def _blocks(run: Run, file: Path | None, gold: bool, **options: Any) -> Iterator[tuple[int, Lines]]:
    """The same, so many at once that the first are answered before the last are there; each with its first's number."""
    from tsallis.tasks import line_reader

    with _opened(run, file, gold) as (lines, name):
        read, first = line_reader(run, name, gold, **options), 0
        while block := list(islice(lines, BLOCK)):
            yield first, read(block, first=first)
            first += len(block)


def _batches(corpus: Corpus) -> Iterator[Batch]:
    """One of all rows; none where there are none."""
    if len(corpus):
        yield corpus.batch(range(len(corpus)))


@contextlib.contextmanager
def _opened(run: Run, file: Path | None, gold: bool) -> Iterator[tuple[Iterator[str], str]]:
    """The lines of a file, or of standard input, and its name."""
    from tsallis.data import reading
    from tsallis.errors import InputError
    from tsallis.tasks import task_of

    expected = task_of(run.task).columns[gold]
    if file is not None:
        with reading.open_file(file) as stream, reading.reading(file):
            yield reading.decode_lines(stream, str(file), expected), str(file)
    elif sys.stdin is None:
        raise InputError("standard input is closed")
    else:
        yield reading.decode_lines(sys.stdin.buffer, "standard input", expected), "standard input"


@app.command()
def evaluate(
    run: RunArgument,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: the config's split.")] = None,
    split: Annotated[
        str | None, typer.Option(help="train, dev or test of the config, in place of FILE; default: test.")
    ] = None,
    beam: Beam = None,
    language: SplitLanguage = None,
    images: SplitImages = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Scores, loss, certificates and sparsity on lines with known outputs.

    Of forms: accuracy and distance; of those of several languages also their means over languages, and each language's.
    Of translations: BLEU, chrF and TER with their signatures, and how often the empty
    string is more probable than the answer.
    """
    from tsallis.config import load_config
    from tsallis.errors import InputError
    from tsallis.prepare import split_lines
    from tsallis.tasks import evaluation
    from tsallis.training import load_run

    if file and split is not None:
        raise InputError(f"--split is for the config's own data: {file} was given, too")
    loaded = load_run(run, checkpoint)
    config = load_config(loaded.folder / "config.yaml")
    options = {"language": language, "images": images}
    if file:
        lines = _read(loaded, file, gold=True, **options)
    else:
        lines = split_lines(loaded, config.data, split or "test", **options)
    report = evaluation(loaded, lines, beam or config.search.beam_size)
    if as_json:
        labels = {name: str(value) for name, value in options.items() if value is not None}
        print(json.dumps({"run": str(run), "on": str(file) if file else split or "test", **labels, **report}))
    else:
        print(_table(report))


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
    "attention_support_forced": ("the same, mean of heads", ".2f"),
    "empty": ("without any hypothesis", "d"),
    "empty_rate": ("empty output more probable", ".2%"),
    "speed": ("symbols a second", ".0f"),
}


def _table(report: dict[str, Any]) -> str:
    lines = [f"{title:<28}{format(report[key], how):>10}" for key, (title, how) in ROWS.items() if key in report]
    lines += [f"{name}: {text}" for name, text in report.get("signatures", {}).items()]
    if "languages" in report:
        lines += ["", f"{'language':<28}{'samples':>10}{'accuracy':>10}{'Levenshtein':>13}"]
    for name, scores in report.get("languages", {}).items():
        lines.append(f"{name:<28}{scores['samples']:>10}{scores['accuracy']:>10.2%}{scores['levenshtein']:>13.3f}")
    return "\n".join(lines)


@app.command()
def score(
    run: RunArgument,
    file: FileArgument = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
    as_json: Json = False,
) -> None:
    """Log-probabilities of known outputs; -inf where the model excludes one.

    Lines are `lemma<TAB>form<TAB>tags`, `source<TAB>target` for translations, `label<TAB>text` for documents, or
    `image<TAB>question<TAB>answer`.
    """
    from tsallis.search import score as score_batch
    from tsallis.training import load_run

    loaded = load_run(run, checkpoint)
    for first, lines in _blocks(loaded, file, gold=True, language=language, images=images):
        totals = [
            total
            for batch in _batches(lines.corpus)
            for total in score_batch(loaded.model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).tolist()
        ]
        for offset, total in zip(lines.places, totals, strict=True):
            possible = total != float("-inf")
            if as_json:
                line = first + offset + 1
                print(json.dumps({"line": line, "possible": possible, "log_prob": total if possible else None}))
            else:
                print(f"{total:.6f}" if possible else "-inf")
        sys.stdout.flush()


@app.command()
def look(
    run: RunArgument,
    file: FileArgument = None,
    out: Annotated[Path, typer.Option(help="Folder for the figures.")] = Path("looks"),
    kind: Annotated[Literal["png", "svg", "pdf"], typer.Option("--format", help="Of the figures.")] = "png",
    beam: Beam = None,
    language: Language = None,
    images: Images = None,
    checkpoint: Which = "best",
) -> None:
    """Figures of what the model attends to, one for each line of input: weights, densities and their supports."""
    from tsallis.looks import figures
    from tsallis.report import save
    from tsallis.training import load_run

    loaded = load_run(run, checkpoint)
    size = beam or _beam_size(loaded)
    out.mkdir(parents=True, exist_ok=True)
    for first, lines in _blocks(loaded, file, gold=False, language=language, images=images):
        for offset, figure in figures(loaded, lines, size):
            path = out / f"{first + offset + 1}.{kind}"
            save(figure, path)
            _print(str(path))


@app.command()
def demo(
    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/english-verbs"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer or more than the recipe's.")] = None,
) -> None:
    """Train on the embedded English verbs, and list every answer the model holds possible for three words."""
    from importlib.resources import as_file, files

    from tsallis.config import load_config
    from tsallis.prepare import read_split
    from tsallis.tasks import evaluation, task_of
    from tsallis.training import load_run
    from tsallis.training.distributed import World

    with as_file(files("tsallis.recipes").joinpath("demo.yaml")) as path:
        config = load_config(path, [] if epochs is None else [f"training.epochs={epochs}"])
    print("Learning to inflect English verbs with sparse attention and a sparse output (1.5-entmax).")
    _train(config, run_dir, World())
    run = load_run(run_dir)
    dev = task_of(run.task).encode(read_split(config.data, "dev"), run)
    print("\nOn verbs never seen in training:")
    print(_table(evaluation(run, dev, config.search.beam_size)))
    print("\nThe complete set of answers the model holds possible for three of them:")
    _show_answers(run, dev)
    print(f"\nThe run is in {run_dir}. Ask it for more:")
    print(f"  printf 'rebel\\tV;PST\\n' | tsallis translate {run_dir} --all")


def _show_answers(run: Run, lines: Lines) -> None:
    """The words the model is least decided about, with all it holds possible for them."""
    from tsallis.evaluation.metrics import search_corpus
    from tsallis.search import exhaustive

    beams = search_corpus(run.model, lines.corpus, beam_size=LISTED)
    complete = [i for i, r in enumerate(beams) if r.certificate.kind == "complete" and 0 < len(r.hypotheses) <= LISTED]
    rows = sorted(complete, key=lambda i: beams[i].hypotheses[0].log_prob)[:SHOWN]
    batch = lines.corpus.batch(rows or range(SHOWN))
    results = exhaustive(run.model, batch.src, batch.src_lengths)
    for i, result in zip(batch.index, results, strict=True):
        count = len(result.hypotheses)
        print(f"  {lines.titles[i]}: {count} answer{'s' * (count != 1)}, {result.certificate.kind}")
        for hypothesis in result.hypotheses[:LISTED]:
            print(f"    {run.tgt_vocab.text(hypothesis.tokens):<20}{hypothesis.prob:.6f}")
        if count > LISTED:
            print(f"    and {count - LISTED} more")
        print(f"    {'sum':<20}{result.mass:.6f}")


if __name__ == "__main__":
    main()
