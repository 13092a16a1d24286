"""The command `tsallis`. Heavy imports stand inside the commands: `--help` answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

try:
    import typer
except ModuleNotFoundError:
    print("tsallis: the commands need more than the library does: pip install 'tsallis[toolkit]'", file=sys.stderr)
    raise SystemExit(2) from None

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tsallis.data.batching import Batch
    from tsallis.data.corpus import Corpus
    from tsallis.data.inflection import InflectionExample
    from tsallis.search import Hypothesis, Result
    from tsallis.training import Run

app = typer.Typer(
    help="Sparse probability in PyTorch: train, translate and look at models with exact zeros.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Known data sets: list them, fetch them.", no_args_is_help=True)
app.add_typer(data_app, name="data")

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")]
FileArgument = Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Input file; default: standard input.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Language = Annotated[str | None, typer.Option(help="The lines' language, for a run of several.")]
SHOWN = 3  # words whose answers the demo lists
LISTED = 10  # answers listed a word


def main() -> None:
    """Run a command; a mistake in its input is one line on standard error and exit status 2."""
    from tsallis.errors import InputError

    try:
        app()
    except InputError as error:
        print(f"tsallis: {' '.join(str(error).split(chr(10)))}", file=sys.stderr)
        raise SystemExit(2) from None
    except BrokenPipeError:
        # The reader of our output has seen enough; nothing may be written at exit either.
        sys.stderr.close()
        raise SystemExit(0) from None


@app.command()
def info() -> None:
    """Versions and the machine."""
    import platform

    import torch

    import tsallis
    from tsallis.kernels import dispatch

    print(f"tsallis {tsallis.__version__}, torch {torch.__version__}, Python {platform.python_version()}")
    print(f"threads {torch.get_num_threads()}, CUDA {'yes' if torch.cuda.is_available() else 'no'}")
    print(f"backend {dispatch.explain()}")


@data_app.command("list")
def data_list() -> None:
    """The data sets that can be fetched."""
    from tsallis.data.sources import SOURCES

    for source in SOURCES.values():
        print(f"{source.name}\t{source.title}")
        print(f"\t{len(source.files)} files, {source.size / 1e6:.1f} MB, licence: {source.licence}")
        print(f"\tcite: {source.citation}")


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="See `tsallis data list`.")],
    folder: Annotated[Path | None, typer.Option(help="Where to; default: data/NAME.")] = None,
    languages: Annotated[str | None, typer.Option(help="Only these, separated by commas.")] = None,
) -> None:
    """Fetch a data set: resumes, checks every file's SHA-256."""
    from tsallis.data.sources import get

    chosen = languages.split(",") if languages else None
    for path in get(name, folder or Path("data") / name, chosen):
        print(path)


@app.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A YAML file, see recipes/.")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...")] = None,
    run_dir: Annotated[Path | None, typer.Option(help="The run folder; default: run_dir of the config.")] = None,
) -> None:
    """Train a model, or go on with a training that was interrupted."""
    from tsallis.config import load_config

    loaded = load_config(config, overrides or [])
    folder = run_dir or (Path(loaded.run_dir) if loaded.run_dir else Path("runs") / config.stem)
    _train(loaded, folder)


def _train(loaded: Any, folder: Path) -> None:
    import torch

    from tsallis.config import prepare
    from tsallis.display import TrainingDisplay
    from tsallis.training import Trainer
    from tsallis.training.run import build_model, locked, start_run

    prepared = prepare(loaded)
    with locked(folder):
        resumed = start_run(
            folder, loaded.text(), prepared.description, prepared.task, prepared.src_vocab, prepared.tgt_vocab
        )
        torch.manual_seed(prepared.settings.seed)
        model = build_model(prepared.description)
        with TrainingDisplay(folder, resumed, prepared.settings.epochs) as display:
            Trainer(model, prepared.train, prepared.dev, folder, prepared.settings, display.update).run()


@app.command()
def translate(
    run: RunArgument,
    file: FileArgument = None,
    nbest: Annotated[int, typer.Option(min=1, help="Outputs a line.")] = 1,
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the run's.")] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Every output with a probability, by exhaustive search.")
    ] = False,
    budget: Annotated[int, typer.Option(min=1, help="Prefixes --all may expand a line.")] = 10_000,
    language: Language = None,
    as_json: Json = False,
) -> None:
    """Predict forms of `lemma<TAB>tags` lines.

    Prints the best form a line. With --nbest above 1 or --all: the number of the line, the form, its probability and
    the certificate, separated by tabs.
    """
    from tsallis.data.corpus import Corpus
    from tsallis.search import beam_search, exhaustive
    from tsallis.training import load_run

    loaded = load_run(run)
    examples = _read(loaded, file, language, need_form=False)
    corpus = Corpus.encode(examples, loaded.src_vocab, loaded.tgt_vocab)
    size = beam or _beam_size(loaded)
    for batch in _in_order(corpus):
        if every:
            results = exhaustive(loaded.model, batch.src, batch.src_lengths, budget=budget)
        else:
            results = beam_search(loaded.model, batch.src, batch.src_lengths, beam_size=max(size, nbest), n_best=nbest)
        for row, result in zip(batch.index, results, strict=True):
            _print_result(loaded, row, result, as_json, many=every or nbest > 1)


def _in_order(corpus: Corpus) -> Iterator[Batch]:
    """Batches of lines as they came, so that results can be printed as they are found."""
    for start in range(0, len(corpus), 64):
        yield corpus.batch(range(start, min(start + 64, len(corpus))))


def _print_result(run: Run, row: int, result: Result, as_json: bool, many: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "line": row + 1,
                    "certificate": result.certificate.kind,
                    "bound": None if result.certificate.bound == float("-inf") else result.certificate.bound,
                    "mass": result.mass,
                    "hypotheses": [
                        {
                            "form": _form(run, h),
                            "prob": h.prob,
                            "log_prob": h.log_prob,
                            "support": h.support,
                            "attended": h.attended,
                        }
                        for h in result.hypotheses
                    ],
                },
                ensure_ascii=False,
            )
        )
    elif many:
        for h in result.hypotheses:
            print(f"{row + 1}\t{_form(run, h)}\t{h.prob:.6g}\t{result.certificate.kind}")
    else:
        print(_form(run, result.best) if result.best else "")


def _form(run: Run, hypothesis: Hypothesis) -> str:
    return "".join(run.tgt_vocab.decode(hypothesis.tokens))


def _beam_size(run: Run) -> int:
    from tsallis.config import load_config

    return load_config(run.folder / "config.yaml").search.beam_size


def _read(run: Run, file: Path | None, language: str | None, need_form: bool) -> list[InflectionExample]:
    from tsallis.data.inflection import decode_lines, parse_line, read_lines
    from tsallis.errors import InputError

    known = run.task.get("languages")
    if language is None and known and len(known) == 1:
        language = known[0]
    if known and language not in known:
        found = "none was given" if language is None else f"{language!r} is not among them"
        raise InputError(f"{run.folder}: the run knows the languages {', '.join(known)}; {found} (--language)")
    if not known and language is not None:
        raise InputError(f"{run.folder}: the run knows no languages, {language!r} was given")
    name = str(file) if file else "standard input"
    lines = read_lines(file) if file else decode_lines(sys.stdin.buffer.read(), name)
    return [parse_line(line, f"{name}:{i}", language, need_form) for i, line in enumerate(lines, start=1)]


@app.command()
def evaluate(
    run: RunArgument,
    file: Annotated[Path | None, typer.Argument(metavar="[FILE]", help="Default: the config's split.")] = None,
    split: Annotated[str, typer.Option(help="train, dev or test of the config.")] = "test",
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size; default: the run's.")] = None,
    language: Language = None,
    as_json: Json = False,
) -> None:
    """Accuracy, distance, loss, certificates and sparsity on samples with known forms."""
    from tsallis.config import load_config, read_split
    from tsallis.training import load_run

    loaded = load_run(run)
    config = load_config(loaded.folder / "config.yaml")
    examples = _read(loaded, file, language, need_form=True) if file else read_split(config.data, split)
    report = _evaluate(loaded, examples, beam or config.search.beam_size)
    if as_json:
        print(json.dumps({"run": str(run), "on": str(file) if file else split, **report}))
    else:
        print(_table(report))


def _evaluate(run: Run, examples: list[InflectionExample], beam_size: int) -> dict[str, Any]:
    from tsallis.data.corpus import Corpus
    from tsallis.metrics import evaluate as measure

    corpus = Corpus.encode(examples, run.src_vocab, run.tgt_vocab)
    return measure(run.model, corpus, [e.form or "" for e in examples], run.tgt_vocab, beam_size).as_dict()


def _table(report: dict[str, Any]) -> str:
    rows = {
        "samples": f"{report['samples']}",
        "accuracy": f"{report['accuracy']:.2%}",
        "mean Levenshtein": f"{report['levenshtein']:.3f}",
        "loss a symbol": f"{report['loss']:.4f}",
        "gold symbols in support": f"{report['gold_in_support']:.2%}",
        "all mass on one hypothesis": f"{report['single']:.1%}",
        "certificate complete": f"{report['complete']:.1%}",
        "certificate optimal": f"{report['optimal']:.1%}",
        "certificate bounded": f"{report['bounded']:.1%}",
        "no certificate": f"{report['none']:.1%}",
        "symbols in support a step": f"{report['output_support']:.2f}",
        "attended positions a step": f"{report['attention_support']:.2f}",
        "without any hypothesis": f"{report['empty']}",
    }
    return "\n".join(f"{name:<28}{value:>10}" for name, value in rows.items())


@app.command()
def score(
    run: RunArgument,
    file: FileArgument = None,
    language: Language = None,
    as_json: Json = False,
) -> None:
    """Log-probabilities of the forms of `lemma<TAB>form<TAB>tags` lines; -inf where the model excludes one."""
    from tsallis.data.corpus import Corpus
    from tsallis.search import score as score_batch
    from tsallis.training import load_run

    loaded = load_run(run)
    examples = _read(loaded, file, language, need_form=True)
    corpus = Corpus.encode(examples, loaded.src_vocab, loaded.tgt_vocab)
    for batch in _in_order(corpus):
        totals = score_batch(loaded.model, batch.src, batch.src_lengths, batch.tgt_in, batch.tgt_out).tolist()
        for row, total in zip(batch.index, totals, strict=True):
            if as_json:
                possible = total != float("-inf")
                print(json.dumps({"line": row + 1, "possible": possible, "log_prob": total if possible else None}))
            else:
                print(f"{total:.6f}" if total != float("-inf") else "-inf")


@app.command()
def demo(
    run_dir: Annotated[Path, typer.Option(help="The run folder.")] = Path("runs/english-verbs"),
    epochs: Annotated[int | None, typer.Option(min=1, help="Fewer or more than the recipe's.")] = None,
) -> None:
    """Train on the embedded English verbs, and list every answer the model holds possible for three words."""
    from importlib.resources import as_file, files

    from tsallis.config import load_config, read_split
    from tsallis.training import load_run

    with as_file(files("tsallis.recipes").joinpath("demo.yaml")) as path:
        config = load_config(path, [] if epochs is None else [f"training.epochs={epochs}"])
    print("Learning to inflect English verbs with sparse attention and a sparse output (1.5-entmax).")
    _train(config, run_dir)
    run = load_run(run_dir)
    dev = read_split(config.data, "dev")
    print("\nOn verbs never seen in training:")
    print(_table(_evaluate(run, dev, config.search.beam_size)))
    print("\nThe complete set of answers the model holds possible for three of them:")
    _show_answers(run, dev)
    print(f"\nThe run is in {run_dir}. Ask it for more:")
    print(f"  printf 'rebel\\tV;PST\\n' | tsallis translate {run_dir} --all")


def _show_answers(run: Run, examples: list[InflectionExample]) -> None:
    """The words the model is least decided about, with all it holds possible for them."""
    from tsallis.data.corpus import Corpus
    from tsallis.metrics import search_corpus
    from tsallis.search import exhaustive

    corpus = Corpus.encode(examples, run.src_vocab, run.tgt_vocab)
    found = search_corpus(run.model, corpus, beam_size=LISTED)
    complete = [i for i, r in enumerate(found) if r.certificate.kind == "complete" and 0 < len(r.hypotheses) <= LISTED]
    rows = sorted(complete, key=lambda i: found[i].hypotheses[0].log_prob)[:SHOWN]
    batch = corpus.batch(rows or range(SHOWN))
    results = exhaustive(run.model, batch.src, batch.src_lengths)
    for i, result in zip(batch.index, results, strict=True):
        count = len(result.hypotheses)
        title = f"{examples[i].lemma} + {';'.join(examples[i].tags)}"
        print(f"  {title}: {count} answer{'s' * (count != 1)}, {result.certificate.kind}")
        for hypothesis in result.hypotheses[:LISTED]:
            print(f"    {_form(run, hypothesis):<20}{hypothesis.prob:.6f}")
        if count > LISTED:
            print(f"    and {count - LISTED} more")
        print(f"    {'sum':<20}{result.mass:.6f}")


if __name__ == "__main__":
    main()
